# What C programs find after `cmake --install <build> --component c`: the library, its headers, a
# CMake package (find_package(rdmatensor), target rdmatensor::rdmatensor), a pkg-config file, and,
# where Python is there to make it from the header, the man page.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS rdmatensor EXPORT rdmatensorTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT c NAMELINK_COMPONENT c
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES ${public_headers}
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT c)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/rdmatensor")
install(EXPORT rdmatensorTargets NAMESPACE rdmatensor:: FILE rdmatensorConfig.cmake
        DESTINATION "${package_dir}" COMPONENT c)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/rdmatensorConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/rdmatensorConfigVersion.cmake"
        DESTINATION "${package_dir}" COMPONENT c)

# Relative to where the file lies, so that an installed tree can be moved.
file(RELATIVE_PATH pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file("${CMAKE_CURRENT_SOURCE_DIR}/cmake/rdmatensor.pc.in"
               "${CMAKE_CURRENT_BINARY_DIR}/rdmatensor.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/rdmatensor.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT c)

find_program(python_for_docs NAMES python3)
mark_as_advanced(python_for_docs)
if(python_for_docs)
    set(reference "${CMAKE_CURRENT_SOURCE_DIR}/cmake/c_reference.py")
    set(header "${RDMATENSOR_CSRC}/include/rdmatensor.h") # and what it includes
    set(man_page "${CMAKE_CURRENT_BINARY_DIR}/rdmatensor.3")
    add_custom_command(OUTPUT "${man_page}"
        COMMAND "${python_for_docs}" "${reference}" man "${header}" "${PROJECT_VERSION}"
                --out "${man_page}"
        DEPENDS "${reference}" ${public_headers} VERBATIM)
    add_custom_target(rdmatensor_man ALL DEPENDS "${man_page}")
    install(FILES "${man_page}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man3" COMPONENT c)
endif()
