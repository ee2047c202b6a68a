#!lua flags=allow-oom
-- A queue redelivered this job. ARGV: id, whether its owner may be declared dead, the witness (empty: none), and until
-- when. Returns its state and, if it may be rescued, the same as `lost`.
local id = ARGV[1]
local f = redis.call('HMGET', job(id), 'state', 'worker_id', 'stale_after')
if not f[1] then return false end
if f[1] ~= 'processing' then return {f[1]} end
local worker = f[2]
local ends = redis.call('ZSCORE', ns .. 'alive', worker)
if ends and tonumber(ends) < now and ARGV[2] == '1' and credible(ARGV[3], ARGV[4]) then
  declare(worker, 'host')
  ends = false
end
local since = silent_since(id)
local why
if not ends then
  why = redis.call('HGET', ns .. 'worker:' .. worker, 'death') or 'missing'
elseif f[3] and now - since > tonumber(f[3]) + 2 * tonumber(redis.call('HGET', ns .. 'worker:' .. worker, 'lease')) then
  why = 'hung'
else
  return {f[1]}
end
return {f[1], to_take(id, worker, why, since)}
