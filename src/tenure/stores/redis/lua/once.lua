#!lua flags=allow-oom
-- Under the lease: the first result of a key in this job. ARGV: id, attempt, worker, key, and the value if there is
-- one. Returns nothing if the lease is lost, else the recorded value, if there is one.
local id, key = ARGV[1], ns .. 'once:' .. ARGV[1]
local f = redis.call('HMGET', job(id), 'state', 'attempt', 'worker_id')
if f[1] ~= 'processing' or f[2] ~= ARGV[2] or f[3] ~= ARGV[3] then return false end
if ARGV[5] then redis.call('HSETNX', key, ARGV[4], ARGV[5]) end
return {redis.call('HGET', key, ARGV[4])}
