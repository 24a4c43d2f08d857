# tests/c/<layer>/<file>_test.c: one program and one CTest entry each, labelled by its folder.
# The other sources of those folders, and of tests/sim, are helpers: one archive, linked into all.
set(tests_dir "${CMAKE_CURRENT_SOURCE_DIR}/tests")
file(GLOB test_sources CONFIGURE_DEPENDS "${tests_dir}/c/*/*_test.c")
file(GLOB support_sources CONFIGURE_DEPENDS "${tests_dir}/c/*/*.c" "${tests_dir}/sim/*.c")
list(FILTER support_sources EXCLUDE REGEX "_test\\.c$")
if(NOT verbs_include)
    message(FATAL_ERROR "the C tests need infiniband/verbs.h (Debian: libibverbs-dev)")
endif()

# The harness ends a test long before; this bounds a program that is stuck outside of any test.
set(test_timeout_s 600)
set(test_environment "RDT_TEST_TIMEOUT_SCALE=1")
if(CMAKE_CROSSCOMPILING)
    set(test_environment "RDT_TEST_TIMEOUT_SCALE=5") # an emulator: six times the CPU time
elseif(RDMATENSOR_SANITIZE)
    set(test_environment
        "RDT_TEST_TIMEOUT_SCALE=6" # TSan on two cores: five times slower where it was measured
        "ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1"
        "UBSAN_OPTIONS=print_stacktrace=1"
        "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")
endif()

if(support_sources)
    add_library(rdmatensor_test_support STATIC ${support_sources})
    target_include_directories(rdmatensor_test_support PUBLIC "${tests_dir}" "${tests_dir}/c")
    target_link_libraries(rdmatensor_test_support PRIVATE rdmatensor_flags
                          PUBLIC rdmatensor_static)
endif()

foreach(source IN LISTS test_sources)
    get_filename_component(name "${source}" NAME_WE)
    get_filename_component(layer "${source}" DIRECTORY)
    get_filename_component(layer "${layer}" NAME)
    set(target "${layer}_${name}")
    add_executable(${target} "${source}")
    target_include_directories(${target} PRIVATE "${tests_dir}/c")
    target_link_libraries(${target} PRIVATE rdmatensor_flags rdmatensor_static)
    if(support_sources)
        target_link_libraries(${target} PRIVATE rdmatensor_test_support)
    endif()
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
    add_test(NAME "${layer}/${name}" COMMAND ${target})
    set_tests_properties("${layer}/${name}" PROPERTIES
        LABELS "${layer}" TIMEOUT ${test_timeout_s} SKIP_RETURN_CODE 77
        ENVIRONMENT "${test_environment}")
endforeach()

# examples/c against the library as it is installed; other compilers' sanitizers, and another
# processor's loader, are in the way of programs that know nothing of them.
if(NOT RDMATENSOR_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    add_test(NAME package/installed
        COMMAND bash "${tests_dir}/package/installed.sh" "${CMAKE_BINARY_DIR}")
    set_tests_properties(package/installed PROPERTIES LABELS package TIMEOUT ${test_timeout_s})
endif()

# Its own calls of the system's functions go to the test instead, which refuses some.
foreach(call malloc calloc realloc aligned_alloc strdup mmap memfd_create ftruncate fallocate socket
        bind listen connect accept4 eventfd epoll_create1 epoll_ctl timerfd_create getifaddrs
        pthread_create)
    target_link_options(integration_refused_test PRIVATE "LINKER:--wrap=${call}")
endforeach()

# Frames of a side channel that find no memory.
target_link_options(core_lost_frame_test PRIVATE LINKER:--wrap=malloc
    LINKER:--wrap=rdti_channel_send)
# A side channel on which a READY is late.
target_link_options(core_half_ready_test PRIVATE LINKER:--wrap=rdti_channel_send)
# Processes that die at a step of the parameter server's protocol.
foreach(test ps_kills_test ps_replicas_test)
    target_link_options(${test} PRIVATE LINKER:--wrap=rdt_endpoint_write
        LINKER:--wrap=rdt_endpoint_wait_notify)
endforeach()

# Two programs run at a time (ci/ctest.sh), but for these: two processes that hand a word back and
# forth, many times over, and figures of time and CPU. With the machine to themselves they measure
# the library, and else the other tests.
set_tests_properties(base/doorbell_litmus_test core/engine_test core/handshake_test
    core/mailbox_steady_test core/setup_test core/verbs_path_test integration/steady_test
    PROPERTIES RUN_SERIAL TRUE)
if(NOT RDMATENSOR_SANITIZE) # which scales their limits
    set_tests_properties(core/alloc_test core/endpoint_hold_test core/engine_waited_test
        integration/sweep_test PROPERTIES RUN_SERIAL TRUE)
endif()

# What searches a large space, for more than ten seconds each where two programs run at a time: kept
# out of the newcomer's run by this label (ci/ctest.sh dev quick).
foreach(test base/doorbell_litmus_test transport/verbs_down_test
        core/verbs_large_test integration/refused_test collectives/coll_halves_test)
    set_property(TEST ${test} APPEND PROPERTY LABELS slow)
endforeach()

# The longest begin first, so that the cores end together: a build's first run knows no times.
set_tests_properties(transport/verbs_down_test collectives/coll_faults_test
    core/mailbox_model_test core/death_test transport/tcp_stress_test collectives/coll_reduce_test
    collectives/coll_hosts_test collectives/coll_algos_test core/mailbox_test core/slot_test
    PROPERTIES COST 1000)
