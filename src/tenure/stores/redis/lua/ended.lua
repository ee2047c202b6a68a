#!lua flags=no-writes
-- Jobs that ended in a time range. ARGV: a state, from and until in milliseconds, how many of the last ones to skip, and
-- how many to return. Returns how many there are; then per job id, task, failures, crashes_total, run_at, started_at,
-- ended_at.
local key, from, til = ns .. ARGV[1], ARGV[2], '(' .. ARGV[3]
local jobs = {}
local last = redis.call('ZREVRANGEBYSCORE', key, til, from, 'WITHSCORES', 'LIMIT', ARGV[4], ARGV[5])
for n = 1, #last, 2 do
  local f = redis.call('HMGET', job(last[n]), 'facts', 'failures', 'crashes_total', 'run_at', 'started_at')
  if f[1] then -- its facts begin with its task; they may be long
    local task = f[1]:match('^{"task":"([^"\\]*)"') or cjson.decode(f[1]).task
    jobs[#jobs + 1] = {last[n], task, f[2] or '0', f[3] or '0', f[4], f[5] or '', last[n + 1]}
  else
    jobs[#jobs + 1] = {last[n], '', '0', '0', '0', '', last[n + 1]}
  end
end
return {redis.call('ZCOUNT', key, from, til), jobs}
