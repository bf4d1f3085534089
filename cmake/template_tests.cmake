# Defines the test that compares chat templates with the output of jinja2. The templates come from llama.cpp's archive;
# `make setup` puts them next to llama.cpp's sources for chats.
function(kvant_template_tests)
  add_executable(write_prompts src/chat/testing/write_prompts.cc)
  target_link_libraries(write_prompts PRIVATE kvant_chat)
  target_compile_options(write_prompts PRIVATE $<$<CONFIG:Release>:-O1>)
  add_dependencies(unit_tests write_prompts)
  # `make setup` installs jinja2 in .venv.
  if(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python AND NOT CMAKE_CROSSCOMPILING)
    add_test(NAME Chat.TemplatesAreThoseOfJinja2
             COMMAND ${CMAKE_SOURCE_DIR}/.venv/bin/python ${CMAKE_SOURCE_DIR}/src/chat/jinja2_comparison_test.py
                     $<TARGET_FILE:write_prompts> ${KVANT_LLAMA_CHAT}/templates)
    set_tests_properties(Chat.TemplatesAreThoseOfJinja2 PROPERTIES LABELS unit TIMEOUT 300 SKIP_RETURN_CODE 77)
  endif()
endfunction()
