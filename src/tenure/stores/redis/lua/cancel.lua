#!lua flags=allow-oom
-- waiting, scheduled, queued → cancelled; processing: requested. ARGV: reason, then ids. Returns their states.
local states = {}
for n = 2, #ARGV do states[n - 1] = cancel(ARGV[n], ARGV[1]) end
return states
