// The kernels as a back end of ggml: it takes the matrix products whose weights lie in this machine's memory in one of the
// formats above, where they were found to be faster than ggml's own. Everything else stays where it was.
#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "ggml-cpu.h"
#include "ggml_tables.h"
#include "product.h"

#ifndef BUILT_FOR
#define BUILT_FOR ""
#endif

namespace kernels {
namespace {

static_assert(int(Q8_0) == GGML_TYPE_Q8_0 && int(Q4_0) == GGML_TYPE_Q4_0 && int(Q4_1) == GGML_TYPE_Q4_1 &&
                  int(Q5_0) == GGML_TYPE_Q5_0 && int(Q5_1) == GGML_TYPE_Q5_1 && int(IQ4_NL) == GGML_TYPE_IQ4_NL &&
                  int(MXFP4) == GGML_TYPE_MXFP4 && int(Q4_K) == GGML_TYPE_Q4_K && int(Q5_K) == GGML_TYPE_Q5_K &&
                  int(Q6_K) == GGML_TYPE_Q6_K,
              "ggml numbers its types otherwise");

constexpr char NAME[] = "spec-local";
constexpr int WIDTHS = 32;  // widths chosen one by one; the last stands for all wider passes

const Instructions *instructions;
std::atomic<bool> taken[TYPES][WIDTHS + 1];  // by type and columns
std::atomic<bool> shown;                     // to llama.cpp, which asks while it makes a context
std::atomic<long> computed;

struct Step {  // one operation of a graph
    bool fresh = false;  // its columns are its own, not those of the step before
    Columns columns;
    Products products;
};
struct Context {
    int threads = 1;
    std::vector<std::unique_ptr<Step>> steps;  // kept for the memory they have
};

// ---- Which operations are taken

bool is_matrix(const ggml_tensor *t) { return t->ne[2] == 1 && t->ne[3] == 1; }

int columns_of(const ggml_tensor *op) {  // of a mixture of experts, as many as one of them gets at least
    const int64_t n = op->op == GGML_OP_MUL_MAT_ID ? (op->ne[1] * op->ne[2] + op->src[0]->ne[2] - 1) / op->src[0]->ne[2]
                                                   : op->src[1]->ne[1];
    return n < WIDTHS ? int(n) : WIDTHS;
}

bool takes(const ggml_tensor *op) {
    const ggml_tensor *w = op->src[0], *x = op->src[1];
    if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) return false;
    const Format *format = format_of(w->type);
    if (!format || !instructions->kernel[w->type] || x->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32) return false;
    if (!w->buffer || !ggml_backend_buffer_is_host(w->buffer)) return false;
    if (!ggml_is_contiguous(w) || w->ne[0] % format->values || w->ne[0] <= 0 || w->ne[1] <= 0) return false;
    if (x->nb[0] != sizeof(float) || op->nb[0] != sizeof(float) || x->nb[1] % sizeof(float) || op->nb[1] % sizeof(float))
        return false;
    if (op->op == GGML_OP_MUL_MAT) {
        if (!is_matrix(w) || !is_matrix(x) || x->ne[1] < 1) return false;
        if (op->op_params[1] != 0) return false;  // a hint that the matrix is of a special kind
    } else if (w->ne[3] != 1 || x->ne[3] != 1 || op->src[2]->type != GGML_TYPE_I32 || op->ne[2] < 1) {
        return false;
    }
    return taken[w->type][columns_of(op)].load(std::memory_order_relaxed);
}

// ---- One operation as products

const float *row_of(const ggml_tensor *t, int64_t i1, int64_t i2) {
    return reinterpret_cast<const float *>(static_cast<const char *>(t->data) + size_t(i1) * t->nb[1] + size_t(i2) * t->nb[2]);
}

void add_column(Product &product, const ggml_tensor *op, int64_t x1, int64_t i1, int64_t i2) {
    product.x.push_back(row_of(op->src[1], x1, i2));
    product.out.push_back(const_cast<float *>(row_of(op, i1, i2)));
}

std::vector<Product> products_of(const ggml_tensor *op) {
    const ggml_tensor *w = op->src[0], *x = op->src[1], *ids = op->src[2];
    const auto *weights = static_cast<const uint8_t *>(w->data);
    std::vector<Product> products;
    if (op->op == GGML_OP_MUL_MAT) {
        products.push_back({weights, {}, {}});
        for (int64_t i = 0; i < x->ne[1]; i++) add_column(products[0], op, i, i, 0);
        return products;
    }
    std::vector<Product> experts(size_t(w->ne[2]));
    for (int64_t token = 0; token < ids->ne[1]; token++)
        for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
            int32_t id;
            std::memcpy(&id, static_cast<const char *>(ids->data) + token * ids->nb[1] + slot * ids->nb[0], sizeof id);
            if (id >= 0 && id < w->ne[2]) add_column(experts[size_t(id)], op, slot % x->ne[1], slot, token);
        }
    for (size_t e = 0; e < experts.size(); e++)
        if (!experts[e].x.empty()) {
            experts[e].weights = weights + e * w->nb[2];
            products.push_back(std::move(experts[e]));
        }
    return products;
}

// What the columns of an operation depend on: the next one may read the same.
struct Reading {
    const ggml_tensor *x;  // null for a mixture, whose columns depend on who they go to
    Activation activation;
    int offset, tile;
    bool operator==(const Reading &o) const {
        return x && x == o.x && activation == o.activation && offset == o.offset && tile == o.tile;
    }
};

ggml_status compute(ggml_backend_t backend, ggml_cgraph *graph) try {
    Context &context = *static_cast<Context *>(backend->context);
    size_t count = 0;
    Reading before{};
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const ggml_tensor *op = ggml_graph_node(graph, i), *w = op->src[0];
        const bool dense = op->op == GGML_OP_MUL_MAT;
        if ((!dense && op->op != GGML_OP_MUL_MAT_ID) || !(op->flags & GGML_TENSOR_FLAG_COMPUTE) || ggml_nelements(op) == 0) continue;
        if (context.steps.size() == count) context.steps.push_back(std::make_unique<Step>());
        Step &step = *context.steps[count++];
        const Format &format = *format_of(w->type);
        const int blocks = int(w->ne[0] / format.values), offset = instructions->offset[w->type];
        const Reading reading{dense ? op->src[1] : nullptr, format.activation, offset, format.tile};
        step.products.begin(*instructions, format, blocks, int(w->ne[1]), w->nb[1], products_of(op));
        step.fresh = !(reading == before);
        if (step.fresh) step.columns.begin(format, offset, blocks, step.products.all());
        before = reading;
    }
    computed.fetch_add(long(count), std::memory_order_relaxed);
#pragma omp parallel num_threads(context.threads) if (count > 0)
    for (size_t i = 0, columns = 0; i < count; i++) {
        Step &step = *context.steps[i];
        if (step.fresh) {  // of values that a step before may just have computed
            columns = i;
            if (i > 0) {
#pragma omp barrier
            }
            step.columns.quantise();
#pragma omp barrier
        }
        step.products.multiply(context.steps[columns]->columns);
    }
    return GGML_STATUS_SUCCESS;
} catch (const std::bad_alloc &) {
    return GGML_STATUS_ALLOC_FAILED;
}

// ---- The tables

const char *backend_name(ggml_backend_t) { return NAME; }
void free_backend(ggml_backend_t backend) {
    delete static_cast<Context *>(backend->context);
    delete backend;
}
ggml_backend_t init_backend(ggml_backend_dev_t device, const char *) {
    static ggml_guid guid = {'s', 'p', 'e', 'c', '-', 'l', 'o', 'c', 'a', 'l', 0, 'k', 'e', 'r', 'n', 1};
    auto context = std::make_unique<Context>();
    auto *backend = new ggml_backend{};
    backend->guid = &guid;
    backend->iface.get_name = backend_name;
    backend->iface.free = free_backend;
    backend->iface.graph_compute = compute;
    backend->device = device;
    backend->context = context.release();
    return backend;
}
void set_threads(ggml_backend_t backend, int threads) { static_cast<Context *>(backend->context)->threads = threads; }

const char *device_name(ggml_backend_dev_t) { return NAME; }
const char *device_description(ggml_backend_dev_t) { return instructions->name; }
void device_memory(ggml_backend_dev_t, size_t *free, size_t *total) { *free = *total = 0; }
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {  // llama.cpp adds ACCEL devices to every context, more CPUs to none
    return shown ? GGML_BACKEND_DEVICE_TYPE_ACCEL : GGML_BACKEND_DEVICE_TYPE_CPU;
}
void device_properties(ggml_backend_dev_t device, ggml_backend_dev_props *properties) {
    std::memset(properties, 0, sizeof *properties);
    properties->name = properties->description = NAME;
    properties->type = device_type(device);
    properties->caps.buffer_from_host_ptr = true;
}
ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); }
ggml_backend_buffer_t buffer_from_host(ggml_backend_dev_t, void *p, size_t size, size_t) {
    return ggml_backend_cpu_buffer_from_ptr(p, size);
}
bool supports_operation(ggml_backend_dev_t, const ggml_tensor *op) {
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return true;
        default: return takes(op);
    }
}
bool supports_buffer_type(ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return ggml_backend_buft_is_host(type); }

const char *registry_name(ggml_backend_reg_t) { return NAME; }
size_t device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t device_at(ggml_backend_reg_t registry, size_t) {
    static ggml_backend_device device = [&] {
        ggml_backend_device d{};
        d.iface.get_name = device_name, d.iface.get_description = device_description, d.iface.get_memory = device_memory;
        d.iface.get_type = device_type, d.iface.get_props = device_properties, d.iface.init_backend = init_backend;
        d.iface.get_buffer_type = device_buffer_type, d.iface.buffer_from_host_ptr = buffer_from_host;
        d.iface.supports_op = supports_operation, d.iface.supports_buft = supports_buffer_type;
        d.reg = registry;
        return d;
    }();
    return &device;
}
void *function(ggml_backend_reg_t, const char *name) {
    return std::strcmp(name, "ggml_backend_set_n_threads") ? nullptr : reinterpret_cast<void *>(set_threads);
}

// ggml's own back end for the processor, read through the tables above: if it is not where they say, they do not fit.
const char *misfit() {
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    if (!cpu) return "it has no back end for the processor";
    if (cpu->api_version != GGML_TABLES_VERSION) return "its back ends have another version";
    if (std::strcmp(cpu->iface.get_name(cpu), "CPU") || cpu->iface.get_device_count(cpu) != 1) return "its registry has another layout";
    ggml_backend_dev_t device = cpu->iface.get_device(cpu, 0);
    if (device != ggml_backend_reg_dev_get(cpu, 0) || device->reg != cpu || device->iface.get_name(device) != ggml_backend_dev_name(device) ||
        device->iface.get_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU ||
        device->iface.get_buffer_type(device) != ggml_backend_cpu_buffer_type() ||
        !device->iface.supports_buft(device, ggml_backend_cpu_buffer_type()))
        return "its devices have another layout";
    ggml_backend_t backend = device->iface.init_backend(device, nullptr);
    const bool fits = backend && backend->device == device && ggml_backend_get_device(backend) == device &&
                      backend->iface.get_name(backend) == ggml_backend_name(backend) && ggml_backend_guid(backend) == backend->guid &&
                      backend->iface.graph_compute;
    ggml_backend_free(backend);
    return fits ? nullptr : "its back ends have another layout";
}

}  // namespace
}  // namespace kernels

// ---- What Python calls

using namespace kernels;

#define EXPORT extern "C" __attribute__((visibility("default")))

// The version of ggml whose headers this was compiled with.
EXPORT const char *kernels_built_for() { return BUILT_FOR; }

// Bytes of ggml's record of a tensor, as the headers have it.
EXPORT size_t kernels_tensor_bytes() { return sizeof(ggml_tensor); }

// What is wrong with the installed ggml, null if nothing is.
EXPORT const char *kernels_misfit() { return misfit(); }

// The best instruction set of this processor that there are kernels for, null without one.
EXPORT const char *kernels_best() {
    const Instructions *best = best_instructions();
    return best ? best->name : nullptr;
}

// Registers the back end with the kernels of one instruction set, and returns its device; null if the processor lacks
// it. It takes nothing yet.
EXPORT ggml_backend_dev_t kernels_register(const char *name) {
    static ggml_backend_reg registry{GGML_TABLES_VERSION, {registry_name, device_count, device_at, function}, nullptr};
    const Instructions *chosen = instructions_by(name);
    if (!chosen || (instructions && instructions != chosen)) return nullptr;
    if (!instructions) {
        instructions = chosen;
        ggml_backend_register(&registry);
    }
    return device_at(&registry, 0);
}

// Whether contexts made from now on get the back end.
EXPORT void kernels_show(bool on) { shown = on; }

// Takes products of `type` with so many columns, or leaves them to ggml. The last width stands for all wider ones.
EXPORT void kernels_take(int type, int columns, bool take) {
    if (type >= 0 && type < TYPES && columns > 0 && columns <= WIDTHS) taken[type][columns] = take;
}

// Products computed so far, over all contexts.
EXPORT long kernels_computed() { return computed; }

// Bits of a product by the kernels of one instruction set, on this thread; false if there are none here.
// weights [rows][row_bytes], x [n][k], out [n][rows].
EXPORT bool kernels_multiply(const char *name, int type, const uint8_t *weights, size_t row_bytes, int k, int rows, const float *x,
                             int n, float *out) {
    const Instructions *chosen = instructions_by(name);
    const Format *format = format_of(type);
    if (!chosen || !format || !chosen->kernel[type] || k % format->values) return false;
    Product product{weights, {}, {}};
    for (int i = 0; i < n; i++) {
        product.x.push_back(x + size_t(i) * k);
        product.out.push_back(out + size_t(i) * rows);
    }
    Columns columns;
    Products products;
    products.begin(*chosen, *format, k / format->values, rows, row_bytes, {product});
    columns.begin(*format, chosen->offset[type], k / format->values, products.all());
    columns.quantise();
    products.multiply(columns);
    return true;
}
