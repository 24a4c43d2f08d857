# The extension modules of the package `rdmatensor`, installed as component `python`: the library,
# the cffi module over it (limited API, one for all Pythons), a c10d module for each torch that is
# there, what compiles another on the user's machine, and the build stamp.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
set(RDMATENSOR_INSTALL_DIR rdmatensor)

# ---- cffi: declarations come from the public headers, never from a copy of them ----
set(ffi_build "${CMAKE_CURRENT_SOURCE_DIR}/rdmatensor/_native/ffi_build.py")
set(ffi_header "${RDMATENSOR_CSRC}/include/rdmatensor_ps.h") # it includes rdmatensor.h
set(ffi_c "${CMAKE_CURRENT_BINARY_DIR}/_rdmatensor_cffi.c")
# run_path, unlike running the file, leaves its folder out of sys.path: the package has a types.py.
string(CONCAT run_path "import runpy, sys; sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')")
add_custom_command(
    OUTPUT "${ffi_c}"
    COMMAND "${Python_EXECUTABLE}" -c "${run_path}" "${ffi_build}"
            --header "${ffi_header}" --cc "${CMAKE_C_COMPILER}" --out "${ffi_c}"
    DEPENDS "${ffi_build}" ${public_headers}
    COMMENT "Generating the cffi module from rdmatensor_ps.h"
    VERBATIM)
# The interpreters without the limited API (free-threaded ones) get a module of their own.
Python_add_library(_rdmatensor_cffi MODULE WITH_SOABI "${ffi_c}")
execute_process(COMMAND "${Python_EXECUTABLE}" -c
    "import sysconfig; print(int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))))"
    OUTPUT_VARIABLE python_is_free OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT python_is_free)
    target_compile_definitions(_rdmatensor_cffi PRIVATE Py_LIMITED_API=0x030A0000)
    set_target_properties(_rdmatensor_cffi PROPERTIES SUFFIX ".abi3.so")
endif()
target_link_libraries(_rdmatensor_cffi PRIVATE rdmatensor)
set_target_properties(_rdmatensor_cffi PROPERTIES INSTALL_RPATH "$ORIGIN")
set(modules rdmatensor _rdmatensor_cffi)

# ---- c10d: against the torch of this interpreter, if it has one, and of those named ----
# A module fits one Python and one release of torch: its file's name has both.
set(RDMATENSOR_TORCH_PYTHONS "" CACHE STRING
    "Further interpreters with a torch each, for whose torch a c10d module is built, too")
file(GLOB_RECURSE c10d_sources CONFIGURE_DEPENDS "${RDMATENSOR_CSRC}/c10d/*.cpp")
# Asked of Python, not of TorchConfig.cmake: that needs every language and library torch was built
# with, and names no torch_python. prebuilt.py has the names, and compares them when it loads.
set(prebuilt "${CMAKE_CURRENT_SOURCE_DIR}/rdmatensor/_backend/prebuilt.py")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${prebuilt}")
set(torch_query [[
import importlib.util, os, runpy, sys, sysconfig
if importlib.util.find_spec("torch") is not None:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch
    from torch.utils import cpp_extension as ext
    prebuilt = runpy.run_path(sys.argv[1])
    print(torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI),
          "|".join(ext.include_paths()), "|".join(ext.library_paths()),
          sysconfig.get_path("include"), prebuilt["module_name"](torch.__version__),
          sysconfig.get_config_var("EXT_SUFFIX"), prebuilt["identity_of"](torch), sep=";")
]])

# torch's headers and pybind11 cost 7 to 20 s in each unit, most files of ours under 2 s: so two
# units, about equal. File-local names are unique in c10d/ for that. The includes are relative:
# ccache finds what another clone compiled.
set(unit_backend "")
set(unit_module "")
foreach(source IN LISTS c10d_sources)
    file(RELATIVE_PATH included "${RDMATENSOR_CSRC}" "${source}")
    if(included MATCHES "^c10d/(module\\.cpp|ddp/)")
        string(APPEND unit_module "#include \"${included}\"\n")
    else()
        string(APPEND unit_backend "#include \"${included}\"\n")
    endif()
endforeach()
set(c10d_units "")
foreach(unit backend module)
    set(unit_file "${CMAKE_CURRENT_BINARY_DIR}/c10d_${unit}.cpp")
    file(GENERATE OUTPUT "${unit_file}" CONTENT "${unit_${unit}}")
    list(APPEND c10d_units "${unit_file}")
endforeach()

# What c10d modules take of the library's private functions: the formats of csrc/wire.
set(formats "/csrc/(base/[a-z0-9_]+|wire/.*|collectives/select/choice)\\.c")
add_library(rdmatensor_formats STATIC
    $<FILTER:$<TARGET_OBJECTS:rdmatensor_objects>,INCLUDE,${formats}>)
target_include_directories(rdmatensor_formats PUBLIC "${RDMATENSOR_CSRC}")
target_link_libraries(rdmatensor_formats PUBLIC ${link_libs})
set_target_properties(rdmatensor_formats PROPERTIES LINKER_LANGUAGE C)
if(RDMATENSOR_WHOLE)
    target_link_options(rdmatensor_formats INTERFACE -fno-lto)
    # Installed: the bytecode is of use to this compiler's version alone.
    add_custom_command(TARGET rdmatensor_formats POST_BUILD
        COMMAND "${CMAKE_OBJCOPY}" -R ".gnu.lto_*" -R ".gnu.debuglto_*"
                "$<TARGET_FILE:rdmatensor_formats>" VERBATIM)
endif()

# rdmatensor_add_c10d(TARGET PYTHON): a module for the interpreter's torch; adds it to `modules` and
# its file's name, with what identifies the torch, to `backends`.
function(rdmatensor_add_c10d target python)
    execute_process(COMMAND "${python}" -c "${torch_query}" "${prebuilt}"
        OUTPUT_VARIABLE torch_answer OUTPUT_STRIP_TRAILING_WHITESPACE
        ERROR_VARIABLE torch_error RESULT_VARIABLE torch_rc)
    if(NOT torch_rc EQUAL 0)
        message(FATAL_ERROR "torch is installed but does not import:\n${torch_error}")
    elseif(torch_answer STREQUAL "")
        message(STATUS "c10d module: skipped, ${python} has no torch")
        return()
    endif()
    list(GET torch_answer 0 torch_version)
    list(GET torch_answer 1 torch_cxx11_abi)
    list(GET torch_answer 2 torch_includes)
    list(GET torch_answer 3 torch_libdirs)
    list(GET torch_answer 4 python_include)
    list(GET torch_answer 5 name)
    list(GET torch_answer 6 suffix)
    list(GET torch_answer 7 identity)
    string(REPLACE "|" ";" torch_includes "${torch_includes}")
    string(REPLACE "|" ";" torch_libdirs "${torch_libdirs}")
    if(torch_version VERSION_LESS 2.11)
        message(FATAL_ERROR "torch ${torch_version} is too old: the c10d module needs 2.11; "
                            "upgrade torch, or build in an environment without it")
    endif()
    message(STATUS "c10d module: ${name}${suffix}, for torch ${torch_version}")

    add_library(${target} MODULE ${c10d_units})
    target_include_directories(${target} PRIVATE "${RDMATENSOR_CSRC}")
    target_include_directories(${target} SYSTEM PRIVATE ${torch_includes} "${python_include}")
    target_compile_definitions(${target} PRIVATE
        TORCH_EXTENSION_NAME=${name} TORCH_API_INCLUDE_EXTENSION_H
        _GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi})
    target_link_libraries(${target} PRIVATE rdmatensor rdmatensor_formats rdmatensor_flags)
    foreach(library torch torch_cpu c10 torch_python)
        find_library(torch_lib_${library} ${library}
            PATHS ${torch_libdirs} NO_DEFAULT_PATH NO_CACHE REQUIRED)
        target_link_libraries(${target} PRIVATE "${torch_lib_${library}}")
    endforeach()
    # torch is loaded before this module, always; its folder stands here for tools such as ldd.
    set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "${name}" SUFFIX "${suffix}"
        INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib" INSTALL_RPATH_USE_LINK_PATH OFF)
    set(modules ${modules} ${target} PARENT_SCOPE)
    set(backends "${backends}    \"${name}${suffix}\": \"${identity}\",\n" PARENT_SCOPE)
endfunction()

set(backends "")
rdmatensor_add_c10d(_c10d "${Python_EXECUTABLE}")
set(number 0)
foreach(python IN LISTS RDMATENSOR_TORCH_PYTHONS)
    math(EXPR number "${number} + 1")
    rdmatensor_add_c10d(_c10d_${number} "${python}")
endforeach()

# ---- the stamp: Python compares it before it loads a module into another torch ----
configure_file("${CMAKE_CURRENT_SOURCE_DIR}/cmake/_build_stamp.py.in"
               "${CMAKE_CURRENT_BINARY_DIR}/_build_stamp.py" @ONLY)

install(TARGETS ${modules} LIBRARY DESTINATION ${RDMATENSOR_INSTALL_DIR} COMPONENT python)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/_build_stamp.py"
        DESTINATION ${RDMATENSOR_INSTALL_DIR} COMPONENT python)
install(FILES ${public_headers}
        DESTINATION ${RDMATENSOR_INSTALL_DIR}/include COMPONENT python)

# ---- what on_demand.py compiles for a torch that has no module here ----
install(DIRECTORY "${RDMATENSOR_CSRC}/c10d" "${RDMATENSOR_CSRC}/wire" "${RDMATENSOR_CSRC}/base"
        DESTINATION ${RDMATENSOR_INSTALL_DIR}/_csrc COMPONENT python
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" PATTERN "*.cpp")
install(FILES ${c10d_units} DESTINATION ${RDMATENSOR_INSTALL_DIR}/_csrc COMPONENT python)
install(FILES "${RDMATENSOR_CSRC}/collectives/select/choice.h"
        DESTINATION ${RDMATENSOR_INSTALL_DIR}/_csrc/collectives/select COMPONENT python)
install(TARGETS rdmatensor_formats
        ARCHIVE DESTINATION ${RDMATENSOR_INSTALL_DIR}/_csrc COMPONENT python)
