#!lua flags=no-writes
-- Edges of some jobs. ARGV: how many at most, from which edge of the first job on, ids. Returns per edge the child, the
-- parent, the edge, and whether it is open.
local most, from, answers = tonumber(ARGV[1]), ARGV[2], {}
for n = 3, #ARGV do
  if #answers >= most then break end
  local child = ARGV[n]
  local edges = redis.call(
    'ZRANGEBYSCORE', ns .. 'parents:' .. child, from, '+inf', 'WITHSCORES', 'LIMIT', 0, most - #answers)
  for at = 1, #edges, 2 do
    local open = redis.call('ZSCORE', ns .. 'unmet:' .. child, edges[at])
    answers[#answers + 1] = {child, edges[at], edges[at + 1], open and 1 or 0}
  end
  from = '-inf'
end
return answers
