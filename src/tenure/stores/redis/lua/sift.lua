#!lua flags=no-writes
-- Which of these jobs can match, so that only they are read in full. ARGV: the filter as JSON, then ids.
local where, found = cjson.decode(ARGV[1]), {}
local function met(wanted, value) return not wanted or wanted == value end
for n = 2, #ARGV do
  local id = ARGV[n]
  local f = redis.call('HMGET', job(id), 'state', 'queue', 'enqueued_at', 'worker_id', 'unique', 'facts', 'error')
  local state, at = f[1], tonumber(f[3] or nil)
  if state and at and (not where.states or where.states[state]) and met(where.queue, f[2]) and met(where.worker, f[4])
    and f[2] ~= where.but and (not where.task or (f[6] or ''):sub(1, #where.task) == where.task)
    and (not where.unique or f[5] and f[5]:match('%z(.*)$') == where.unique)
    and (not where.since or at >= where.since) and (not where.til or at < where.til)
    and (not where.text or id:find(where.text, 1, true) or f[7] and f[7]:find(where.text, 1, true))
    and (not where.ended or state ~= 'scheduled' and tonumber(redis.call('ZSCORE', ns .. state, id) or 0) >= where.ended) then
    found[#found + 1] = id
  end
end
return found
