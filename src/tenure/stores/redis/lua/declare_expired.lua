#!lua flags=allow-oom
-- Whose lease has run out is dead. ARGV: a worker of the caller's, if it has one; until when. Answers who.
if not credible(ARGV[1], ARGV[2]) then return {} end
local died = expired(now)
for _, worker in ipairs(died) do declare(worker, 'host') end
return died
