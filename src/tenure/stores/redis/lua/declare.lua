#!lua flags=allow-oom
-- The caller has proof of death. ARGV: workers. Returns those declared dead by this call.
local died = {}
for _, worker in ipairs(ARGV) do
  if declare(worker, 'crash') then died[#died + 1] = worker end
end
return died
