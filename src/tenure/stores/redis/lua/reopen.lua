#!lua
-- Before a replay of an ended job with very many edges: open some of them again. ARGV: its id, the first edge, the
-- error of a job that expired. Returns the next edge, or nothing after the last; or the parent without which it can't
-- run, its state, and why.
local id = ARGV[1]
local edges = redis.call('ZRANGEBYSCORE', ns .. 'parents:' .. id, ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, 200)
if not ENDED[redis.call('HGET', job(id), 'state')] then return false end
local lost = lost_of(edges, ARGV[3])
if lost then return lost end
open_all(id, edges, true)
return #edges == 400 and string.format('%.0f', edges[#edges] + 1)
