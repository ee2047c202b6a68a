#!lua flags=allow-oom
-- Whose lease has run out is dead. Answers who.
local died = expired(now)
for _, worker in ipairs(died) do declare(worker, 'host') end
return died
