# rdtperf measures the library through its public header and links the shared library, as a user
# would; bench/core has a file for each of its sub-commands. It is built into <build>/bench.
set(bench_dir "${CMAKE_CURRENT_SOURCE_DIR}/bench")
file(GLOB bench_core CONFIGURE_DEPENDS "${bench_dir}/core/*.c")
add_executable(bench_rdtperf ${bench_core})
target_link_libraries(bench_rdtperf PRIVATE rdmatensor)
target_link_libraries(bench_rdtperf PRIVATE rdmatensor_flags Threads::Threads m)
set_target_properties(bench_rdtperf PROPERTIES
    OUTPUT_NAME rdtperf RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bench")
