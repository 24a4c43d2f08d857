# bench/floor/<name>.c and bench/core/<name>.c: one program each, built into <build>/bench. A floor
# is what the hardware and the kernel give without us; the others measure the library through its
# public header and link the shared library, as a user would. bench/support: what they share.
set(bench_dir "${CMAKE_CURRENT_SOURCE_DIR}/bench")
file(GLOB bench_support CONFIGURE_DEPENDS "${bench_dir}/support/*.c")
if(NOT verbs_include) # the library said so
    list(FILTER bench_support EXCLUDE REGEX "/raw_verbs\\.c$")
endif()
add_library(rdmatensor_bench_support STATIC ${bench_support})
target_include_directories(rdmatensor_bench_support PUBLIC "${bench_dir}/support")
target_link_libraries(rdmatensor_bench_support
    PRIVATE rdmatensor_flags PUBLIC rdmatensor Threads::Threads ${CMAKE_DL_LIBS})

file(GLOB bench_sources CONFIGURE_DEPENDS "${bench_dir}/floor/*.c" "${bench_dir}/core/*.c")
if(NOT verbs_include)
    list(FILTER bench_sources EXCLUDE REGEX "/verbs_floor\\.c$")
endif()
foreach(source IN LISTS bench_sources)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(bench_${name} "${source}")
    target_link_libraries(bench_${name} PRIVATE rdmatensor_flags rdmatensor_bench_support m)
    set_target_properties(bench_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bench")
endforeach()
