// Every kernel on memory of exactly its size, by three threads at once, against the reference: made for sanitisers.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "product.h"

using namespace kernels;

namespace {

// float [n][rows]
std::vector<float> multiply(const Instructions &set, const Format &format, const uint8_t *weights, int blocks, int rows,
                            const std::vector<float> &x, int n, int threads) {
    std::vector<float> out(size_t(n) * rows);
    std::vector<Product> some(1);
    some[0].weights = weights;
    for (int i = 0; i < n; i++) {
        some[0].x.push_back(&x[size_t(i) * blocks * format.values]);
        some[0].out.push_back(&out[size_t(i) * rows]);
    }
    Columns columns;
    Products products;
    products.begin(set, format, blocks, rows, size_t(blocks) * format.block_bytes, some);
    columns.begin(format, set.offset[format.type], blocks, products.all());
    for (int step = 0; step < 2; step++) {
        std::vector<std::thread> team;
        for (int t = 0; t < threads; t++)
            team.emplace_back([&] { step ? products.multiply(columns) : columns.quantise(); });
        for (auto &thread : team) thread.join();
    }
    return out;
}

bool same(const std::vector<float> &a, const std::vector<float> &b) {
    for (size_t i = 0; i < a.size(); i++)
        if (std::memcmp(&a[i], &b[i], 4) && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
    return true;
}

}  // namespace

int main() {
    std::mt19937 random(1);
    int compared = 0;
    for (const Format &format : FORMATS)
        for (int blocks : {1, 3})
            for (int rows : {1, 6, 67})
                for (int n : {1, 7, 16, 21}) {
                    const size_t bytes = size_t(rows) * blocks * format.block_bytes;
                    std::unique_ptr<uint8_t[]> weights(new uint8_t[bytes]);
                    for (size_t i = 0; i < bytes; i++) weights[i] = uint8_t(random());
                    std::vector<float> x(size_t(n) * blocks * format.values);
                    for (float &v : x) v = float(int(random() % 2001) - 1000) / 500;
                    const auto expected = multiply(REFERENCE, format, weights.get(), blocks, rows, x, n, 1);
                    for (const char *name : {"AVX-512 VNNI", "AVX-VNNI", "AVX2"}) {
                        const Instructions *set = instructions_by(name);
                        if (!set) continue;
                        if (!same(multiply(*set, format, weights.get(), blocks, rows, x, n, 3), expected)) {
                            std::printf("%s %s: %d blocks, %d rows, %d columns differ\n", name, format.name, blocks, rows, n);
                            return 1;
                        }
                        compared++;
                    }
                }
    std::printf("%d products alike\n", compared);
    return 0;
}
