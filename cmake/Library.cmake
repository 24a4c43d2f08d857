# librdmatensor: compiled once, linked twice. The shared library exports what rdmatensor.map lists;
# the static one is for C tests, which may reach private functions.
set(RDMATENSOR_CSRC "${CMAKE_CURRENT_SOURCE_DIR}/csrc")
set(layers base wire transport progress memory process connect endpoint slot message group gpu api
    collectives ps)
list(TRANSFORM layers PREPEND "${RDMATENSOR_CSRC}/")
list(TRANSFORM layers APPEND "/*.c")
file(GLOB_RECURSE RDMATENSOR_SOURCES CONFIGURE_DEPENDS ${layers})
find_path(verbs_include infiniband/verbs.h)
mark_as_advanced(verbs_include)
if(verbs_include)
    list(FILTER RDMATENSOR_SOURCES EXCLUDE REGEX "/transport/verbs/device/absent\\.c$")
else()
    message(WARNING "infiniband/verbs.h is absent (Debian: libibverbs-dev): built without verbs")
    list(FILTER RDMATENSOR_SOURCES EXCLUDE REGEX "/transport/verbs/.*\\.c$")
    list(APPEND RDMATENSOR_SOURCES "${RDMATENSOR_CSRC}/transport/verbs/device/absent.c")
endif()
if(NOT RDMATENSOR_SOURCES)
    message(FATAL_ERROR "no C source under ${RDMATENSOR_CSRC}")
endif()

add_library(rdmatensor_objects OBJECT ${RDMATENSOR_SOURCES})
target_include_directories(rdmatensor_objects
    PUBLIC "${RDMATENSOR_CSRC}/include"
    PRIVATE "${RDMATENSOR_CSRC}")
target_compile_definitions(rdmatensor_objects PRIVATE RDT_VERSION_TEXT="${PROJECT_VERSION}")
target_link_libraries(rdmatensor_objects PRIVATE rdmatensor_flags)
# A product and a sum that are rounded once, as FMA does, have other bits than on other processors.
# clang does so by default, and gcc does with GNU extensions.
set_source_files_properties("${RDMATENSOR_CSRC}/collectives/reduce/avx2.c"
                            "${RDMATENSOR_CSRC}/collectives/reduce/generic.c"
                            "${RDMATENSOR_CSRC}/collectives/lossy/avx2.c"
                            "${RDMATENSOR_CSRC}/collectives/lossy/avx512.c"
                            "${RDMATENSOR_CSRC}/collectives/lossy/generic.c"
                            PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
# Square roots are vectorised only where they need not set errno.
set_source_files_properties("${RDMATENSOR_CSRC}/ps/rules/avx2.c"
                            "${RDMATENSOR_CSRC}/ps/rules/generic.c"
                            PROPERTIES COMPILE_OPTIONS "-ffp-contract=off;-fno-math-errno")

# A small message passes through some fifty functions of a dozen files: compiled as a whole most of
# those calls go away. For releases alone, as it costs time at the link; tests link the objects as
# they are.
set(RDMATENSOR_WHOLE OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND CMAKE_C_COMPILER_ID STREQUAL "GNU"
   AND NOT RDMATENSOR_SANITIZE)
    set(RDMATENSOR_WHOLE ON)
    target_compile_options(rdmatensor_objects PRIVATE -flto=auto -ffat-lto-objects)
endif()

set(link_libs Threads::Threads ${CMAKE_DL_LIBS} m)

add_library(rdmatensor_static STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:rdmatensor_objects>)
target_include_directories(rdmatensor_static PUBLIC
    "${RDMATENSOR_CSRC}/include" "${RDMATENSOR_CSRC}")
target_link_libraries(rdmatensor_static PUBLIC ${link_libs})
if(RDMATENSOR_WHOLE)
    target_link_options(rdmatensor_static INTERFACE -fno-lto)
endif()

set(map "${RDMATENSOR_CSRC}/api/rdmatensor.map")
add_library(rdmatensor SHARED $<TARGET_OBJECTS:rdmatensor_objects>)
target_include_directories(rdmatensor PUBLIC
    "$<BUILD_INTERFACE:${RDMATENSOR_CSRC}/include>" "$<INSTALL_INTERFACE:include>")
target_link_libraries(rdmatensor PRIVATE ${link_libs})
target_link_options(rdmatensor PRIVATE "LINKER:--version-script=${map}" LINKER:-z,relro,-z,now)
if(RDMATENSOR_WHOLE)
    target_link_options(rdmatensor PRIVATE -flto=auto)
endif()
if(NOT RDMATENSOR_SANITIZE)
    # A symbol missing here must fail this link, not somebody's dlopen; sanitizers' come later.
    target_link_options(rdmatensor PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(rdmatensor PROPERTIES LINK_DEPENDS "${map}")

# The ABI's major number, from the header. A wheel cannot hold symbolic links, and its copy is
# private to the package, so there the file's plain name is the soname.
file(GLOB public_headers CONFIGURE_DEPENDS "${RDMATENSOR_CSRC}/include/*.h")
file(STRINGS "${RDMATENSOR_CSRC}/include/rdmatensor.h" line REGEX "^#define RDT_ABI_MAJOR [0-9]+")
if(NOT line MATCHES "([0-9]+)$")
    message(FATAL_ERROR "no RDT_ABI_MAJOR in rdmatensor.h")
endif()
set(abi_major "${CMAKE_MATCH_1}")
if(NOT SKBUILD)
    set_target_properties(rdmatensor PROPERTIES SOVERSION ${abi_major})
    include(InstallC)
endif()
