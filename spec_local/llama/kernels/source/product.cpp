#include "product.h"

#include <algorithm>
#include <utility>

namespace kernels {
namespace {

constexpr size_t CHUNK_BYTES = 32 << 10;  // of weights that a thread takes at a time: they stay near it for all tiles
constexpr int CHUNK_ROWS = 4;             // the least, and what a chunk is a multiple of
constexpr uintptr_t ALIGNMENT = 64;

}  // namespace

void Products::begin(const Instructions &instructions, const Format &format, int blocks, int rows, size_t row_bytes,
                     std::vector<Product> products, bool keep) {
    instructions_ = &instructions, format_ = &format;
    blocks_ = blocks, rows_ = rows, row_bytes_ = row_bytes;
    products_ = std::move(products);
    chunk_ = std::max(CHUNK_ROWS, int(CHUNK_BYTES / row_bytes) / CHUNK_ROWS * CHUNK_ROWS);
    next_chunk_ = 0;
    next_column_ = keep ? tiles_.size() * MOST_TILE : 0;
    if (keep) return;
    tiles_.clear(), first_tile_.clear();
    size_t room = ALIGNMENT;
    for (size_t p = 0; p < products_.size(); p++) {
        first_tile_.push_back(tiles_.size());
        const int n = int(products_[p].x.size()), count = (n + format.tile - 1) / format.tile;
        for (int t = 0; t < count; t++) {  // of about one size
            const int first = n * t / count, end = n * (t + 1) / count;
            tiles_.push_back({p, first, end - first, room - ALIGNMENT});
            room += size_t(end - first) * blocks * column_bytes(format);
        }
    }
    first_tile_.push_back(tiles_.size());
    if (prepared_.size() < room) prepared_.resize(room);
}

void *Products::prepared(const Tile &tile) {
    const auto base = reinterpret_cast<uintptr_t>(prepared_.data());
    return reinterpret_cast<void *>((base + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + tile.at);
}

void Products::prepare() {
    const int offset = instructions_->offset[format_->type];
    for (size_t i; (i = next_column_++) < tiles_.size() * MOST_TILE;) {
        const Tile &tile = tiles_[i / MOST_TILE];
        const int column = int(i % MOST_TILE);
        if (column >= tile.n) continue;
        const float *x = products_[tile.product].x[size_t(tile.first + column)];
        kernels::prepare(*format_, offset, x, blocks_, prepared(tile), column, tile.n);
    }
}

void Products::multiply() {
    const size_t chunks = size_t((rows_ + chunk_ - 1) / chunk_);
    for (size_t i; (i = next_chunk_++) < chunks * products_.size();) {
        const size_t p = i / chunks;
        const int first = int(i % chunks) * chunk_, last = std::min(rows_, first + chunk_);
        for (size_t t = first_tile_[p]; t < first_tile_[p + 1]; t++) {
            const Tile &tile = tiles_[t];
            const Call call{products_[p].weights, row_bytes_, blocks_, first, last, prepared(tile), tile.n,
                            products_[p].out.data() + tile.first};
            instructions_->kernel[format_->type](call);
        }
    }
}

}  // namespace kernels
