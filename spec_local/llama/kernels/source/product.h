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

// Products of one format and shape. Every thread of the team calls both steps, with a barrier in between and behind.
class Products {
  public:
    // Describes the products; one thread does it, before the steps. `keep` says that the columns are those of the call
    // before, and so is what was prepared of them.
    void begin(const Instructions &, const Format &, int blocks, int rows, size_t row_bytes, std::vector<Product>, bool keep);
    void prepare();   // columns are quantised
    void multiply();  // rows are shared out as threads come for them

  private:
    struct Tile {  // columns that one call of a kernel takes
        size_t product;
        int first, n;
        size_t at;  // in prepared_
    };
    void *prepared(const Tile &);

    const Instructions *instructions_ = nullptr;
    const Format *format_ = nullptr;
    int blocks_ = 0, rows_ = 0, chunk_ = 0;
    size_t row_bytes_ = 0;
    std::vector<Product> products_;
    std::vector<Tile> tiles_;
    std::vector<size_t> first_tile_;  // of each product, and the end
    std::vector<uint8_t> prepared_;
    std::atomic<size_t> next_column_{0}, next_chunk_{0};
};

}  // namespace kernels
