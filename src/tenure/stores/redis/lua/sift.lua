#!lua flags=no-writes
-- Which of these jobs can match, so that only they are read in full. ARGV: how many bytes of text to compare, the filter
-- as JSON, ids. Returns how many of the ids it has read before that many bytes, then those that can match.
local most, where, found, compared = tonumber(ARGV[1]), cjson.decode(ARGV[2]), {0}, 0
local ENDED = {completed = true, dead = true, cancelled = true}
local FIELDS = {payload = 'payload', result = 'result', error = 'error', text = 'error', meta = 'facts'}
local function met(wanted, value) return not wanted or wanted == value end

local function ended_in_time(state, id)
  if not (where.ended or where.ended_til) then return true end
  local at = ENDED[state] and tonumber(redis.call('ZSCORE', ns .. state, id) or nil)
  return at and (not where.ended or at >= where.ended) and (not where.ended_til or at < where.ended_til)
end

-- Whether each part stands in its field; A to Z in either case. The parts are in lower case.
local function contains(id)
  local texts = {}
  for _, part in ipairs(where.parts or {}) do
    local name = FIELDS[part[1]]
    if not texts[name] then
      local text = redis.call('HGET', job(id), name) or name == 'result' and 'null' or ''
      texts[name] = text:lower()
      compared = compared + #text
    end
    local here = texts[name]:find(part[2], 1, true) or part[1] == 'text' and id:find(part[2], 1, true)
    if not here then return false end
  end
  return true
end

for n = 3, #ARGV do
  local id = ARGV[n]
  local f = redis.call('HMGET', job(id), 'state', 'queue', 'enqueued_at', 'worker_id', 'unique', 'facts')
  local state, at = f[1], tonumber(f[3] or nil)
  if state and at and (not where.states or where.states[state]) and met(where.queue, f[2]) and met(where.worker, f[4])
    and f[2] ~= where.but and (not where.task or (f[6] or ''):sub(1, #where.task) == where.task)
    and (not where.unique or f[5] and f[5]:match('%z(.*)$') == where.unique)
    and (not where.since or at >= where.since) and (not where.til or at < where.til)
    and ended_in_time(state, id) and contains(id) then
    found[#found + 1] = id
  end
  found[1] = found[1] + 1
  if compared >= most then break end
end
return found
