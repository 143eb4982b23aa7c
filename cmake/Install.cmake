# find_package(demi) gives demi::demi; its headers lie under include/demi/<folder>/.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/demi)
install(TARGETS demi EXPORT demi-targets COMPONENT library)
install(DIRECTORY ${DEMI_LIBRARY_FOLDERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/demi COMPONENT library
        FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
if(EXISTS ${PROJECT_SOURCE_DIR}/demi.h)
  install(FILES demi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/demi COMPONENT library)
endif()
install(EXPORT demi-targets NAMESPACE demi:: DESTINATION ${package_dir} COMPONENT library)
configure_package_config_file(cmake/demi-config.cmake.in demi-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(demi-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/demi-config.cmake ${PROJECT_BINARY_DIR}/demi-config-version.cmake
              cmake/FindcuDNN.cmake
        DESTINATION ${package_dir} COMPONENT library)
