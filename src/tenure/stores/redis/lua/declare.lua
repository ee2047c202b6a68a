#!lua flags=allow-oom
-- Proof of death is the caller's. ARGV: workers. Answers who died just now.
local died = {}
for _, worker in ipairs(ARGV) do
  if declare(worker, 'crash') then died[#died + 1] = worker end
end
return died
