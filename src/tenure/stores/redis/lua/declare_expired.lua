#!lua flags=allow-oom
-- Declare workers dead whose lease has run out. ARGV: the witness (empty: none), until when. Returns their ids.
if not credible(ARGV[1], ARGV[2]) then return {} end
local died = expired(now)
for _, worker in ipairs(died) do declare(worker, 'host') end
return died
