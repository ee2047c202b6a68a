#!lua flags=no-writes
-- Which of these jobs can match, so that only they are read in full. ARGV: how many bytes of text to compare, the filter
-- as JSON, ids. Returns how many of the ids it has read before that many bytes, then those that can match.
local most, where, found, compared = tonumber(ARGV[1]), cjson.decode(ARGV[2]), {0}, 0
local ENDED = {completed = true, dead = true, cancelled = true}
local FIELDS = {payload = 'payload', result = 'result', error = 'error', text = 'error', meta = 'facts'}
local SHORT = {
  states = 'state', queue = 'queue', but = 'queue', task = 'facts', worker = 'worker_id', unique = 'unique',
  since = 'enqueued_at', til = 'enqueued_at',
}
local parts = where.parts or {}

-- The fields to read, no more than the filter asks for: the cost of looking at many jobs is what is read of them. Texts
-- may be long, so they are read only of jobs that meet the rest; at once, if hardly any job fails that.
local short, texts, at, is_selective = {'state'}, {}, {state = 1}, where.ended or where.ended_til
for name, field in pairs(SHORT) do
  if where[name] and not at[field] then
    short[#short + 1] = field
    at[field] = #short
  end
  is_selective = is_selective or where[name] and name ~= 'but'
end
local text_of, texts_read = {}, {}
for _, part in ipairs(parts) do
  local field = FIELDS[part[1]]
  if not text_of[field] then
    texts[#texts + 1] = field
    text_of[field] = #texts
  end
end
local before = is_selective and 0 or #short
if not is_selective then for _, field in ipairs(texts) do short[#short + 1] = field end end

local function met(wanted, value) return not wanted or wanted == value end

local function ended_in_time(state, id)
  if not (where.ended or where.ended_til) then return true end
  local ended = ENDED[state] and tonumber(redis.call('ZSCORE', ns .. state, id) or nil)
  return ended and (not where.ended or ended >= where.ended) and (not where.ended_til or ended < where.ended_til)
end

local function enqueued_in_time(value)
  if not (where.since or where.til) then return true end
  local enqueued = tonumber(value)
  return enqueued and (not where.since or enqueued >= where.since) and (not where.til or enqueued < where.til)
end

local function can_match(f, id)
  return f[1] and (not where.states or where.states[f[1]]) and met(where.queue, f[at.queue])
    and met(where.worker, f[at.worker_id]) and (not where.but or f[at.queue] ~= where.but)
    and (not where.task or (f[at.facts] or ''):sub(1, #where.task) == where.task)
    and (not where.unique or f[at.unique] and f[at.unique]:match('%z(.*)$') == where.unique)
    and enqueued_in_time(f[at.enqueued_at]) and ended_in_time(f[1], id)
end

-- Is each part in its text? A to Z match in either case. The parts are in lower case.
local function contains(read, id)
  for n, field in ipairs(texts) do
    texts_read[n] = (read[before + n] or field == 'result' and 'null' or ''):lower()
    compared = compared + #texts_read[n]
  end
  for _, part in ipairs(parts) do
    local here = texts_read[text_of[FIELDS[part[1]]]]:find(part[2], 1, true)
    if not (here or part[1] == 'text' and id:find(part[2], 1, true)) then return false end
  end
  return true
end

for n = 3, #ARGV do
  local id = ARGV[n]
  local read = redis.call('HMGET', job(id), unpack(short))
  if can_match(read, id) then
    if is_selective and #texts > 0 then read = redis.call('HMGET', job(id), unpack(texts)) end
    if contains(read, id) then found[#found + 1] = id end
  end
  found[1] = found[1] + 1
  if compared >= most then break end
end
return found
