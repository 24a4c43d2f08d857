# tests/fuzz/*.c: one libFuzzer program each, all of them by the target `fuzz`; what lies in
# tests/fuzz/support is linked into all. The preset of
# that name chooses clang and instruments the library; ci/fuzz.sh runs them.
if(NOT RDMATENSOR_SANITIZE MATCHES "fuzzer-no-link" OR NOT TARGET rdmatensor_test_support)
    message(FATAL_ERROR "fuzz targets need the preset fuzz: cmake --preset fuzz")
endif()
file(GLOB fuzz_sources CONFIGURE_DEPENDS "${tests_dir}/fuzz/*.c")
file(GLOB fuzz_support CONFIGURE_DEPENDS "${tests_dir}/fuzz/support/*.c")
add_custom_target(fuzz)
# The reductions ask for vectors, which the instrumentation does not allow.
target_compile_options(rdmatensor_objects PRIVATE -Wno-pass-failed)
target_compile_definitions(rdmatensor_test_support PRIVATE RDT_FUZZ)
foreach(source IN LISTS fuzz_sources)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(fuzz_${name} EXCLUDE_FROM_ALL "${source}" ${fuzz_support})
    target_compile_definitions(fuzz_${name} PRIVATE RDT_FUZZ)
    target_include_directories(fuzz_${name} PRIVATE "${tests_dir}/c" "${tests_dir}/fuzz")
    target_link_libraries(fuzz_${name} PRIVATE
        rdmatensor_flags rdmatensor_static rdmatensor_test_support)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(fuzz_${name} PROPERTIES
        OUTPUT_NAME "${name}" RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz")
    add_dependencies(fuzz fuzz_${name})
endforeach()
