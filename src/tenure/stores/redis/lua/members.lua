#!lua flags=no-writes
-- The states of some jobs of a flow. ARGV: its id, the last job before (empty: none), how many. Returns the last job, if
-- there are more; then state and number.
local low = ARGV[2] == '' and '-' or '(' .. ARGV[2]
local ids = redis.call('ZRANGEBYLEX', ns .. 'members:' .. ARGV[1], low, '+', 'LIMIT', 0, ARGV[3])
local counts, answers = {}, {#ids == tonumber(ARGV[3]) and ids[#ids]}
for _, id in ipairs(ids) do
  local state = redis.call('HGET', job(id), 'state')
  if state then counts[state] = (counts[state] or 0) + 1 end
end
for state, number in pairs(counts) do answers[#answers + 1], answers[#answers + 2] = state, number end
return answers
