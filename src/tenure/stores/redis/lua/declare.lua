#!lua flags=allow-oom
-- Declare workers dead, with proof that the caller has. ARGV: workers. Returns those declared dead by this call.
local died = {}
for _, worker in ipairs(ARGV) do
  if declare(worker, 'crash') then died[#died + 1] = worker end
end
return died
