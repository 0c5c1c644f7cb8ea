#include "product.h"

#include <algorithm>
#include <utility>

namespace kernels {
namespace {

constexpr size_t CHUNK_BYTES = 32 << 10;  // of weights that a thread takes at a time: they stay near it for all tiles
constexpr int CHUNK_ROWS = 4;             // the least, and what a chunk is a multiple of
constexpr uintptr_t ALIGNMENT = 64;

}  // namespace

void Columns::begin(const Format &format, int offset, int blocks, const std::vector<Product> &products) {
    format_ = &format, offset_ = offset, blocks_ = blocks;
    next_ = 0;
    tiles_.clear(), x_.clear();
    size_t room = 0;
    for (size_t p = 0; p < products.size(); p++) {
        const int n = int(products[p].x.size()), count = (n + format.tile - 1) / format.tile;
        for (int t = 0; t < count; t++) {  // of about one size
            const int first = n * t / count, end = n * (t + 1) / count;
            tiles_.push_back({p, first, end - first, room});
            for (int i = 0; i < MOST_TILE; i++) x_.push_back(first + i < end ? products[p].x[size_t(first + i)] : nullptr);
            room += size_t(end - first) * blocks * column_bytes(format);
        }
    }
    if (memory_.size() < room + ALIGNMENT) memory_.resize(room + ALIGNMENT);
}

uint8_t *Columns::base() const {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<uint8_t *>((at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

void Columns::quantise() {
    for (size_t i; (i = next_++) < x_.size();) {
        const Tile &tile = tiles_[i / MOST_TILE];
        if (x_[i]) prepare(*format_, offset_, x_[i], blocks_, base() + tile.at, int(i % MOST_TILE), tile.n);
    }
}

void Products::begin(const Instructions &instructions, const Format &format, int blocks, int rows, size_t row_bytes,
                     std::vector<Product> products) {
    kernel_ = instructions.kernel[format.type];
    blocks_ = blocks, rows_ = rows, row_bytes_ = row_bytes;
    products_ = std::move(products);
    chunk_ = std::max(CHUNK_ROWS, int(CHUNK_BYTES / row_bytes) / CHUNK_ROWS * CHUNK_ROWS);
    next_ = 0;
}

void Products::multiply(const Columns &columns) {
    const size_t chunks = size_t((rows_ + chunk_ - 1) / chunk_);
    for (size_t i; (i = next_++) < chunks * products_.size();) {
        const Product &product = products_[i / chunks];
        const int first = int(i % chunks) * chunk_, last = std::min(rows_, first + chunk_);
        for (const Columns::Tile &tile : columns.tiles()) {
            if (tile.product != i / chunks) continue;
            kernel_({product.weights, row_bytes_, blocks_, first, last, columns.blocks(tile), tile.n, product.out.data() + tile.first});
        }
    }
}

}  // namespace kernels
