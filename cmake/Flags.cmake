# rdmatensor_flags: what every target of ours is compiled with, and nothing foreign is.
add_library(rdmatensor_flags INTERFACE)
target_compile_definitions(rdmatensor_flags INTERFACE _GNU_SOURCE)
target_compile_options(rdmatensor_flags INTERFACE
    -Wall -Wextra -Wshadow
    $<$<COMPILE_LANGUAGE:C>:-Wconversion -Wstrict-prototypes -Wvla>)
if(RDMATENSOR_WERROR)
    target_compile_options(rdmatensor_flags INTERFACE -Werror)
endif()

# Sanitizers go on every object, the foreign ones included, or their reports have holes.
if(RDMATENSOR_SANITIZE)
    add_compile_options(-fsanitize=${RDMATENSOR_SANITIZE} -fno-sanitize-recover=all
                        -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${RDMATENSOR_SANITIZE})
    if(RDMATENSOR_SANITIZE MATCHES "thread")
        # gcc warns that it does not model fences. The engine's two (the wake-up protocol) order
        # atomics, which need no model to be free of races; the litmus test judges their order.
        add_compile_options(-Wno-tsan)
    endif()
elseif(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    # Needs optimisation; the sanitizers have checks of their own for the same calls.
    target_compile_options(rdmatensor_flags INTERFACE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif()
