#!lua flags=no-writes
-- Jobs that ended in a time range. ARGV: from and until, in milliseconds; then how many of the last completed ones to
-- skip and how many to return. Returns how many were cancelled, completed, dead; then per job run_at, started_at,
-- ended, id.
local from, til = ARGV[1], '(' .. ARGV[2]
local answer, times = {}, {}
for n, state in ipairs({'cancelled', 'completed', 'dead'}) do answer[n] = redis.call('ZCOUNT', ns .. state, from, til) end
local last = redis.call('ZREVRANGEBYSCORE', ns .. 'completed', til, from, 'WITHSCORES', 'LIMIT', ARGV[3], ARGV[4])
for n = 1, #last, 2 do
  local f = redis.call('HMGET', job(last[n]), 'run_at', 'started_at')
  times[#times + 1] = {f[1], f[2], last[n + 1], last[n]}
end
answer[4] = times
return answer
