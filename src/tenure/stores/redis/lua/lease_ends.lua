#!lua flags=no-writes
-- ARGV: workers. Returns per worker the end of its lease, or nothing if it is unknown.
local answers = {}
for n, worker in ipairs(ARGV) do
  local f = redis.call('HMGET', ns .. 'worker:' .. worker, 'renewed_at', 'lease')
  answers[n] = f[1] and tonumber(f[1]) + tonumber(f[2])
end
return answers
