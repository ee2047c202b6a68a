#!lua flags=no-writes
-- The edges that lead from a job. ARGV: its id, the last child before them (empty: none), how many. Returns its facts,
-- state, result, error; then per edge the child, the edge, and whether it is open.
local id = ARGV[1]
local low = ARGV[2] == '' and '-' or '(' .. ARGV[2]
local answers = {redis.call('HMGET', job(id), 'facts', 'state', 'result', 'error')}
for _, child in ipairs(redis.call('ZRANGEBYLEX', ns .. 'children:' .. id, low, '+', 'LIMIT', 0, ARGV[3])) do
  local edge = redis.call('ZSCORE', ns .. 'parents:' .. child, id)
  local open = redis.call('ZSCORE', ns .. 'unmet:' .. child, id)
  answers[#answers + 1] = {child, edge, open and 1 or 0}
end
return answers
