// The tables a ggml back end fills in, version 2 of its interface (MIT, from ggml's ggml-backend-impl.h, which the
// installed package lacks). `tables_fit` in backend.cpp compares them with the installed library before they are used.
#pragma once

#include "ggml-backend.h"

constexpr int GGML_TABLES_VERSION = 2;
using ggml_unused_function = void (*)(void);

struct ggml_backend_i {
    const char *(*get_name)(ggml_backend_t);
    void (*free)(ggml_backend_t);
    ggml_unused_function tensor_access_and_plans[10];  // set_tensor_async … graph_plan_compute, all optional
    enum ggml_status (*graph_compute)(ggml_backend_t, struct ggml_cgraph *);
    ggml_unused_function events_and_optimize[3];  // optional
};
struct ggml_backend {
    ggml_guid_t guid;
    ggml_backend_i iface;
    ggml_backend_dev_t device;
    void *context;
};

struct ggml_backend_device_i {
    const char *(*get_name)(ggml_backend_dev_t);
    const char *(*get_description)(ggml_backend_dev_t);
    void (*get_memory)(ggml_backend_dev_t, size_t *free, size_t *total);
    enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t);
    void (*get_props)(ggml_backend_dev_t, struct ggml_backend_dev_props *);
    ggml_backend_t (*init_backend)(ggml_backend_dev_t, const char *params);
    ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t);
    ggml_backend_buffer_type_t (*get_host_buffer_type)(ggml_backend_dev_t);  // optional
    ggml_backend_buffer_t (*buffer_from_host_ptr)(ggml_backend_dev_t, void *, size_t size, size_t max_tensor_size);
    bool (*supports_op)(ggml_backend_dev_t, const struct ggml_tensor *);
    bool (*supports_buft)(ggml_backend_dev_t, ggml_backend_buffer_type_t);
    bool (*offload_op)(ggml_backend_dev_t, const struct ggml_tensor *);  // optional
    ggml_unused_function events[3];                                      // optional
};
struct ggml_backend_device {
    ggml_backend_device_i iface;
    ggml_backend_reg_t reg;
    void *context;
};

struct ggml_backend_reg_i {
    const char *(*get_name)(ggml_backend_reg_t);
    size_t (*get_device_count)(ggml_backend_reg_t);
    ggml_backend_dev_t (*get_device)(ggml_backend_reg_t, size_t index);
    void *(*get_proc_address)(ggml_backend_reg_t, const char *name);
};
struct ggml_backend_reg {
    int api_version;
    ggml_backend_reg_i iface;
    void *context;
};
