#!lua flags=no-writes
-- Which jobs have changed. ARGV: how many to return at most, then id and mark per job, as it was last seen. Returns per
-- changed job: id, its mark, when it ended, and the values of `often` and of `rest`; or id and the mark gone.
local ended, answers = {completed = true, dead = true, cancelled = true}, {}
local often = {'state', 'attempt', 'failures', 'run_at', 'started_at', 'progress', 'stage', 'message', 'cancel_reason'}
local rest = {'error', 'enqueued_at', 'facts', 'result'}
for n = 2, #ARGV, 2 do
  local key, mark, at = job(ARGV[n]), 'gone', false
  local f = redis.call('HMGET', key, 'crashes_total', unpack(often))
  if f[2] then
    at = ended[f[2]] and redis.call('ZSCORE', ns .. f[2], ARGV[n]) or false
    local seen = {at or ''}
    for k = 1, #often + 1 do seen[k + 1] = f[k] or '' end
    mark = redis.sha1hex(table.concat(seen, '\0'))
  end
  if mark ~= ARGV[n + 1] then
    answers[#answers + 1] = {ARGV[n], mark, at, f, redis.call('HMGET', key, unpack(rest))}
    if #answers == tonumber(ARGV[1]) then break end
  end
end
return answers
