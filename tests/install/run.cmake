# Installs the built library into an empty prefix; a project that knows only that prefix then builds with it and runs.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${work_dir})
run(${CMAKE_COMMAND} --install ${build_dir} --prefix ${work_dir}/prefix --component library)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work_dir}/build -G Ninja -D CMAKE_BUILD_TYPE=
  -D CMAKE_PREFIX_PATH=${work_dir}/prefix -D CMAKE_CXX_COMPILER=${compiler} -D "CMAKE_CXX_FLAGS=${flags}")
run(${CMAKE_COMMAND} --build ${work_dir}/build)
run(${work_dir}/build/consumer)
if(NOT output STREQUAL "2 0 6 2\n")
  message(FATAL_ERROR "consumer printed ${output}")
endif()
