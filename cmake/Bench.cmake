# bench/floor/<name>.c: one program each, built into <build>/bench. A floor is what the hardware
# and the kernel give without us; those that measure us link the shared library as a user would.
file(GLOB bench_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/bench/floor/*.c")
foreach(source IN LISTS bench_sources)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(bench_${name} "${source}")
    target_link_libraries(bench_${name} PRIVATE rdmatensor_flags rdmatensor Threads::Threads m)
    set_target_properties(bench_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bench")
endforeach()
