// Products of matrices with the columns of a pass, shared out over a team of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "formats.h"

namespace kernels {

// One matrix with all columns it is multiplied with: the whole of a dense layer, or one expert of a mixture.
struct Product {
    const uint8_t *weights;
    std::vector<const float *> x;  // columns, [blocks · values] each
    std::vector<float *> out;      // [rows] each
};

// The columns of one or more products, quantised for kernels that read them alike.
class Columns {
  public:
    struct Tile {  // columns that one call of a kernel takes
        size_t product;
        int first, n;
        size_t at;  // of its blocks
    };

    void begin(const Format &, int offset, int blocks, const std::vector<Product> &);  // one thread
    void quantise();                                                                  // every thread of the team
    const void *blocks(const Tile &tile) const { return base() + tile.at; }
    const std::vector<Tile> &tiles() const { return tiles_; }

  private:
    uint8_t *base() const;

    const Format *format_ = nullptr;
    int offset_ = 0, blocks_ = 0;
    std::vector<Tile> tiles_;
    std::vector<const float *> x_;  // [tile][MOST_TILE], null where a tile is narrower
    std::vector<uint8_t> memory_;
    std::atomic<size_t> next_{0};
};

// Products of one format and shape.
class Products {
  public:
    void begin(const Instructions &, const Format &, int blocks, int rows, size_t row_bytes, std::vector<Product>);  // one thread
    void multiply(const Columns &);  // every thread of the team: rows are shared out as threads come for them
    const std::vector<Product> &all() const { return products_; }

  private:
    Kernel kernel_ = nullptr;
    int blocks_ = 0, rows_ = 0, chunk_ = 0;
    size_t row_bytes_ = 0;
    std::vector<Product> products_;
    std::atomic<size_t> next_{0};
};

}  // namespace kernels
