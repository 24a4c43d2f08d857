# rdtperf measures the library through its public header and links the shared library, as a user
# would; bench/core has a file for each of its sub-commands. verbs_floor has what plain libibverbs
# give. The programs are built into <build>/bench.
set(bench_dir "${CMAKE_CURRENT_SOURCE_DIR}/bench")
file(GLOB bench_core CONFIGURE_DEPENDS "${bench_dir}/core/*.c")
add_executable(bench_rdtperf ${bench_core})
target_link_libraries(bench_rdtperf PRIVATE rdmatensor)
set(bench_programs bench_rdtperf)
if(verbs_include) # libibverbs-dev is there, with its library
    add_executable(bench_verbs_floor
        "${bench_dir}/floor/verbs_floor.c" "${bench_dir}/core/bench.c")
    target_include_directories(bench_verbs_floor PRIVATE "${bench_dir}/core")
    target_link_libraries(bench_verbs_floor PRIVATE ibverbs)
    list(APPEND bench_programs bench_verbs_floor)
endif()
foreach(target IN LISTS bench_programs)
    string(REPLACE "bench_" "" name "${target}")
    target_link_libraries(${target} PRIVATE rdmatensor_flags Threads::Threads m)
    set_target_properties(${target} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bench")
endforeach()
