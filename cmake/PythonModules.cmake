# The extension modules of the package `rdmatensor`, installed as component `python`:
# the library, the cffi module over it, the c10d module where torch is, and the build stamp.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
set(RDMATENSOR_INSTALL_DIR rdmatensor)

# ---- cffi: declarations come from the public header, never from a copy of it ----
set(ffi_build "${CMAKE_CURRENT_SOURCE_DIR}/rdmatensor/_native/ffi_build.py")
set(ffi_header "${RDMATENSOR_CSRC}/include/rdmatensor.h")
set(ffi_c "${CMAKE_CURRENT_BINARY_DIR}/_rdmatensor_cffi.c")
# run_path, unlike running the file, leaves its folder out of sys.path: the package has a types.py.
string(CONCAT run_path "import runpy, sys; sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')")
add_custom_command(
    OUTPUT "${ffi_c}"
    COMMAND "${Python_EXECUTABLE}" -c "${run_path}" "${ffi_build}"
            --header "${ffi_header}" --cc "${CMAKE_C_COMPILER}" --out "${ffi_c}"
    DEPENDS "${ffi_build}" "${ffi_header}"
    COMMENT "Generating the cffi module from rdmatensor.h"
    VERBATIM)
Python_add_library(_rdmatensor_cffi MODULE WITH_SOABI "${ffi_c}")
target_link_libraries(_rdmatensor_cffi PRIVATE rdmatensor)
set_target_properties(_rdmatensor_cffi PROPERTIES INSTALL_RPATH "$ORIGIN")
set(modules rdmatensor _rdmatensor_cffi)

# ---- c10d: against the torch of this interpreter, if it has one ----
# Asked of Python, not of TorchConfig.cmake: that needs every language and library torch was built
# with, and names no torch_python.
file(GLOB_RECURSE c10d_sources CONFIGURE_DEPENDS "${RDMATENSOR_CSRC}/c10d/*.cpp")
set(torch_query [[
import importlib.util, os
if importlib.util.find_spec("torch") is not None:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch
    from torch.utils import cpp_extension as ext
    print(torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI),
          "|".join(ext.include_paths()), "|".join(ext.library_paths()), sep=";")
]])
set(torch_version "")
if(c10d_sources)
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "${torch_query}"
        OUTPUT_VARIABLE torch_answer OUTPUT_STRIP_TRAILING_WHITESPACE
        ERROR_VARIABLE torch_error RESULT_VARIABLE torch_rc)
    if(NOT torch_rc EQUAL 0)
        message(FATAL_ERROR "torch is installed but does not import:\n${torch_error}")
    elseif(torch_answer STREQUAL "")
        message(STATUS "c10d module: skipped, ${Python_EXECUTABLE} has no torch")
    else()
        list(GET torch_answer 0 torch_version)
        list(GET torch_answer 1 torch_cxx11_abi)
        list(GET torch_answer 2 torch_includes)
        list(GET torch_answer 3 torch_libdirs)
        string(REPLACE "|" ";" torch_includes "${torch_includes}")
        string(REPLACE "|" ";" torch_libdirs "${torch_libdirs}")
        if(torch_version VERSION_LESS 2.11)
            message(FATAL_ERROR "torch ${torch_version} is too old: the c10d module needs 2.11; "
                                "upgrade torch, or build in an environment without it")
        endif()
        message(STATUS "c10d module: for torch ${torch_version}")
    endif()
endif()
if(torch_version)
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
    Python_add_library(_c10d MODULE WITH_SOABI ${c10d_units})
    target_include_directories(_c10d PRIVATE "${RDMATENSOR_CSRC}")
    target_include_directories(_c10d SYSTEM PRIVATE ${torch_includes})
    target_compile_definitions(_c10d PRIVATE
        TORCH_EXTENSION_NAME=_c10d TORCH_API_INCLUDE_EXTENSION_H
        _GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi})
    # Of the static library it takes the formats of csrc/wire, which the shared one keeps to itself.
    target_link_libraries(_c10d PRIVATE rdmatensor rdmatensor_static rdmatensor_flags)
    foreach(name torch torch_cpu c10 torch_python)
        find_library(torch_lib_${name} ${name}
            PATHS ${torch_libdirs} NO_DEFAULT_PATH NO_CACHE REQUIRED)
        target_link_libraries(_c10d PRIVATE "${torch_lib_${name}}")
    endforeach()
    # torch is loaded before this module, always; its folder stands here for tools such as ldd.
    set_target_properties(_c10d PROPERTIES
        INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib" INSTALL_RPATH_USE_LINK_PATH OFF)
    list(APPEND modules _c10d)
endif()

# ---- the stamp: Python compares it before it loads a module into another torch ----
if(torch_version)
    set(stamp_torch "\"${torch_version}\"")
else()
    set(stamp_torch "None")
endif()
configure_file("${CMAKE_CURRENT_SOURCE_DIR}/cmake/_build_stamp.py.in"
               "${CMAKE_CURRENT_BINARY_DIR}/_build_stamp.py" @ONLY)

install(TARGETS ${modules} LIBRARY DESTINATION ${RDMATENSOR_INSTALL_DIR} COMPONENT python)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/_build_stamp.py"
        DESTINATION ${RDMATENSOR_INSTALL_DIR} COMPONENT python)
install(FILES "${ffi_header}" "${RDMATENSOR_CSRC}/include/rdmatensor_ext.h"
        DESTINATION ${RDMATENSOR_INSTALL_DIR}/include COMPONENT python)
