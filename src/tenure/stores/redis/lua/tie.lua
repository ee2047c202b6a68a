#!lua flags=allow-oom
-- Store edges of a job that is about to be suspended, under its lease, unless it is to be cancelled. ARGV: id, attempt,
-- worker, then parent and marks per edge.
local f = redis.call('HMGET', job(ARGV[1]), 'state', 'attempt', 'worker_id', 'cancel_reason')
if f[1] ~= 'processing' or f[2] ~= ARGV[2] or f[3] ~= ARGV[3] or f[4] then return end
for i = 4, #ARGV, 2 do tie(ARGV[1], ARGV[i], tonumber(ARGV[i + 1])) end
