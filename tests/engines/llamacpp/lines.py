"""Lines as llama-server b10434 wrote them at ``-lv 4``."""

from __future__ import annotations

RING = """\
0.00.013.504 I cmn  common_param: device_info:
0.00.014.028 I cmn  common_param:   - RPC0    : 127.0.0.1:19152 (24105 MiB, 24105 MiB free)
0.00.014.989 I srv         start: binding port with default address family
0.00.016.311 I srv    load_model: loading model 'tiny.gguf'
AMX is not ready to be used!
0.00.026.072 I common_memory_breakdown_print: | memory breakdown [MiB]     | total    free    self   model   context   compute    unaccounted |
0.00.026.087 I common_memory_breakdown_print: |   - RPC0 (127.0.0.1:19152) | 24105 = 24105 + (   5 =     0 +       1 +       4) +          -5 |
0.00.026.088 I common_memory_breakdown_print: |   - RPC1 (127.0.0.1:19153) | 24105 = 24105 + (   5 =     0 +       1 +       4) +          -5 |
0.00.026.088 I common_memory_breakdown_print: |   - Host                   |                     2 =     0 +       0 +       2                |
0.00.026.389 I common_params_fit_impl:   - RPC0 (127.0.0.1:19152):  24105 total,      5 used,  24099 free vs. target of   1024
0.00.026.390 I common_params_fit_impl:   - RPC1 (127.0.0.1:19153):  24105 total,      5 used,  24099 free vs. target of   1024
0.00.026.392 I common_fit_params: successfully fit params to free device memory
0.00.027.091 I llama_prepare_model_devices: using device RPC0 (127.0.0.1:19152) (unknown id) - 24105 MiB free
0.00.028.180 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.029.858 I load_tensors: offloaded 5/5 layers to GPU
0.00.029.861 I load_tensors:   CPU_Mapped model buffer size =     0.14 MiB
0.00.029.862 I load_tensors: RPC0[127.0.0.1:19152] model buffer size =     0.56 MiB
0.00.029.863 I load_tensors: RPC0[127.0.0.1:19153] model buffer size =     0.70 MiB
0.00.030.799 I llama_context:        CPU  output buffer size =     0.01 MiB
0.00.031.148 I llama_kv_cache: RPC0[127.0.0.1:19152] KV buffer size =     1.00 MiB
0.00.032.788 I llama_kv_cache: RPC0[127.0.0.1:19153] KV buffer size =     1.00 MiB
0.00.037.574 I sched_reserve: RPC0[127.0.0.1:19152] compute buffer size =     4.27 MiB
0.00.037.583 I sched_reserve: RPC0[127.0.0.1:19153] compute buffer size =     4.27 MiB
0.00.037.584 I sched_reserve:        CPU compute buffer size =     2.52 MiB
0.00.044.435 I srv  llama_server: model loaded
0.00.044.449 I srv  llama_server: listening on http://127.0.0.1:19180
0.01.526.706 I srv  server_strea: conv_id= (empty=1)
0.01.543.058 I common_memory_breakdown_print: |   - RPC0 (127.0.0.1:19152) | 24105 = 24105 + (   9 =     0 +       1 +       8) +          -9 |
""".splitlines()  # noqa: E501

TOO_BIG = """\
0.00.674.708 I common_memory_breakdown_print: |   - RPC0 (127.0.0.1:19152) | 24105 = 24105 + (44005 =     0 +   14648 +   29356) +      -44005 |
0.00.674.708 I common_memory_breakdown_print: |   - RPC1 (127.0.0.1:19153) | 24105 = 24105 + (44005 =     0 +   14648 +   29356) +      -44005 |
0.00.774.539 I common_params_fit_impl:   - RPC0 (127.0.0.1:19152):  24105 total,  44005 used, -19899 free vs. target of   1024
0.00.774.539 I common_params_fit_impl:   - RPC1 (127.0.0.1:19153):  24105 total,  44005 used, -19899 free vs. target of   1024
0.00.774.668 W common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 999, abort
""".splitlines()  # noqa: E501

ALONE = """\
0.00.006.369 I common_memory_breakdown_print: |   - Host               |                    7 =     1 +       2 +       4                |
0.00.006.508 I common_params_fit_impl: projected to use 7 MiB of host memory vs. 24105 MiB of total host memory
0.00.006.517 I common_fit_params: successfully fit params to free device memory
0.00.007.085 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.007.410 I load_tensors: offloaded 5/5 layers to GPU
0.00.007.411 I load_tensors:   CPU_Mapped model buffer size =     1.40 MiB
0.00.007.621 I llama_kv_cache:        CPU KV buffer size =     2.00 MiB
0.00.014.124 I sched_reserve:        CPU compute buffer size =     4.27 MiB
0.00.044.435 I srv  llama_server: model loaded
""".splitlines()  # noqa: E501

METRICS = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 1500
# HELP llamacpp:tokens_predicted_seconds_total Total time spent generating tokens
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total 2.65793
# HELP llamacpp:n_decode_total Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding
# TYPE llamacpp:n_decode_total counter
llamacpp:n_decode_total 1500
# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# HELP llamacpp:requests_deferred Number of requests deferred
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 3
"""  # noqa: E501

SLOTS = [
    {"id": 0, "n_ctx": 2048, "speculative": False, "is_processing": False},
    {
        "id": 2,
        "n_ctx": 2048,
        "speculative": False,
        "is_processing": True,
        "id_task": 7,
        "n_prompt_tokens": 257,
        "next_token": [{"has_next_token": True, "has_new_line": False, "n_remain": 1246, "n_decoded": 254}],
    },
]
