#!lua flags=no-writes
-- The edges of a job. ARGV: its id, the first place, how many. Returns per edge: the parent, the edge, whether it is open,
-- and of the parent facts, state, result, error.
local edges = redis.call('ZRANGEBYSCORE', ns .. 'parents:' .. ARGV[1], 8 * ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
local answers = {}
for n = 1, #edges, 2 do
  local open = redis.call('ZSCORE', ns .. 'unmet:' .. ARGV[1], edges[n])
  local f = redis.call('HMGET', job(edges[n]), 'facts', 'state', 'result', 'error')
  answers[#answers + 1] = {edges[n], edges[n + 1], open and 1 or 0, f[1], f[2], f[3], f[4]}
end
return answers
