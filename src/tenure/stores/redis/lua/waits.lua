
-- What scripts about jobs that wait share, after common.lua. An edge is in four keys: parents:CHILD, a zset of parents
-- by 8 * place + marks; unmet:CHILD, the same for those that are open; children:PARENT, a zset of ids; pins:PARENT, the
-- same without the children whose end `admit` has dealt with. An ended job with `linked` = 1 is kept for its children.
local MINE, SKIPPED = 2, 4 -- marks; 1: any end will do
local LATER, NEVER = '', 2 ^ 50 -- an open edge from no job: more edges of this child are in a part that is not stored yet
local LIVE = {waiting = true, scheduled = true, queued = true, processing = true}
local ENDED = {completed = true, dead = true, cancelled = true}
local function marked(edge, mark) return math.floor(edge / mark) % 2 == 1 end
local function met(edge, state) return state == 'completed' or marked(edge, 1) and ENDED[state] or false end

-- Other jobs may wait for this one, or it for them: its end, and `complete`, have more to do.
local linked = {}
local function link(id)
  if linked[id] then return end
  linked[id] = true
  local f = redis.call('HMGET', job(id), 'state', 'linked', 'attempt', 'worker_id')
  if not f[1] or f[2] == '1' then return end
  redis.call('HSET', job(id), 'linked', '1', 'attempt', f[3] or 0)
  local died = f[1] == 'dead' and redis.call('ZSCORE', ns .. 'dead', id)
  if died then redis.call('ZADD', ns .. 'holding', died, id) end -- else it is being replayed
  if f[1] == 'processing' then redis.call('HSET', ns .. 'processing:' .. f[4], id, f[3] .. '+') end
end

-- A job is no longer kept for its children once all of them have ended.
local function release(id)
  local f = redis.call('HMGET', job(id), 'state', 'linked')
  if f[2] == '1' and ENDED[f[1]] and redis.call('EXISTS', ns .. 'pins:' .. id) == 0 then
    redis.call('HSET', job(id), 'linked', '0')
    redis.call('ZREM', ns .. 'holding', id)
  end
end

local function pin(parent, child)
  redis.call('ZADD', ns .. 'pins:' .. parent, 0, child)
  link(parent)
end

-- An edge that is there already: the stricter need holds, and the edge opens if its parent has not ended so.
local function tie_again(child, parent, marks)
  local key, unmet = ns .. 'parents:' .. child, ns .. 'unmet:' .. child
  local edge, open = tonumber(redis.call('ZSCORE', key, parent)), redis.call('ZSCORE', unmet, parent)
  if marked(edge, 1) and not marked(marks, 1) then
    edge = edge - 1
    redis.call('ZADD', key, edge, parent)
    if open then redis.call('ZADD', unmet, edge, parent) end
  end
  local state = redis.call('HGET', job(parent), 'state')
  if not (open or marked(edge, SKIPPED) or met(edge, state)) and (state or not marked(edge, 1)) then
    redis.call('ZADD', unmet, edge, parent)
    pin(parent, child)
  end
end

-- A new edge, at the next place of its child; there is one between two jobs at most.
local places = {}
local function tie(child, parent, marks)
  local key, place = ns .. 'parents:' .. child, places[child]
  if not place then
    local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    place = last[2] and math.floor(last[2] / 8) + 1 or 0
  end
  local edge = 8 * place + marks
  local new = redis.call('ZADD', key, 'NX', edge, parent)
  places[child] = place + new
  if new == 1 then
    redis.call('ZADD', ns .. 'unmet:' .. child, edge, parent)
    redis.call('ZADD', ns .. 'children:' .. parent, 0, child)
    pin(parent, child)
  else
    tie_again(child, parent, marks)
  end
  link(child)
end

-- A live job that waits for this one, or goes on with its result. Where `admit` has yet to deal with the ends
-- of very many, one of those.
local function live_child(id)
  local some = redis.call('ZRANGE', ns .. 'pins:' .. id, 0, 199)
  for _, child in ipairs(some) do
    if LIVE[redis.call('HGET', job(child), 'state')] then return child end
  end
  return #some == 200 and some[1]
end

-- A live job that this one gathers. Its edge may be closed: it was replayed since.
local function live_gathered(id)
  local from = '-inf'
  repeat
    local some = redis.call('ZRANGEBYSCORE', ns .. 'parents:' .. id, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 200)
    for n = 1, #some, 2 do
      local live = marked(tonumber(some[n + 1]), MINE) and LIVE[redis.call('HGET', job(some[n]), 'state')]
      if live then return some[n] end
    end
    from = '(' .. (some[#some] or '')
  until #some < 400
  return false
end

-- Jobs with what they wait for. `args`: the number of values of `enqueue`, these, then rows of five:
--   need ID                             this job must exist; and
--   gather GATHERER CHILD MARKS UNIQUE  it must not be the one that holds its child's key: `refused` says so first
--   wait CHILD MORE                     it is stored as waiting; with MORE, more of its edges are in a later part
--   edge CHILD PARENT MARKS
--   last CHILD                          the end of its edges, where there were MORE
--   flow JOB FLOW NAME ONCE             with ONCE = 1 it must not be there already
local function refused(args)
  local missing = {}
  for i = tonumber(args[1]) + 2, #args, 5 do
    local kind, a, b, last = args[i], args[i + 1], args[i + 2], args[i + 4]
    if kind == 'need' and redis.call('EXISTS', job(a)) == 0 then
      missing[#missing + 1] = a
    elseif kind == 'gather' and last ~= '' and redis.call('HGET', ns .. 'unique', last) == a
      and redis.call('EXISTS', job(b)) == 0 then
      return {a, 'itself'}
    elseif kind == 'flow' and last == '1' and redis.call('ZSCORE', ns .. 'flows', b) then
      return {b, 'made'}
    end
  end
  table.sort(missing)
  return missing[1] and {missing[1], 'missing'} or false
end

-- `call`: given if the call has several parts; they share a hash of the jobs that stand for those not created.
-- Returns what `enqueue` does.
local function store(args, call)
  local first, waits, stands = tonumber(args[1]) + 2, {}, {}
  for i = first, #args, 5 do
    if args[i] == 'wait' then waits[args[i + 1]] = true end
  end
  local answers = enqueue(args, 2, first - 1, false, waits)
  for _, answer in ipairs(answers) do
    if type(answer) == 'table' then
      stands[answer[3]] = answer[1]
      if call then redis.call('HSET', ns .. 'stands:' .. call, answer[3], answer[1]) end
    end
  end
  local function other(id)
    if stands[id] == nil and call then stands[id] = redis.call('HGET', ns .. 'stands:' .. call, id) end
    return stands[id]
  end
  local exists = {} -- it may have been deleted since an earlier part was stored
  local function is_there(id)
    if exists[id] == nil then exists[id] = redis.call('EXISTS', job(id)) == 1 end
    return exists[id]
  end
  for i = first, #args, 5 do
    local kind, a, b, c = args[i], args[i + 1], args[i + 2], args[i + 3]
    if kind == 'need' or not (other(a) or is_there(a)) then
      -- nothing to store
    elseif kind == 'gather' then
      local child = other(b) or b
      if child ~= a then
        tie(a, child, tonumber(c) + (child == b and MINE or 0))
        ask(a)
      end
    elseif not other(a) then
      if kind == 'edge' then
        tie(a, other(b) or b, tonumber(c))
      elseif kind == 'flow' then
        redis.call('HSET', job(a), 'flow', b)
        redis.call('ZADD', ns .. 'flows', 'NX', now, b)
        redis.call('HSETNX', ns .. 'flow_names', b, c)
        redis.call('ZADD', ns .. 'members:' .. b, 0, a)
      elseif kind == 'wait' and b ~= '' then
        redis.call('ZADD', ns .. 'unmet:' .. a, NEVER, LATER)
      else
        if kind == 'last' then redis.call('ZREM', ns .. 'unmet:' .. a, LATER) end
        ask(a)
      end
    end
  end
  return answers
end

-- Some edges of a job that is gone, from gone:ID. Returns how many, and whether any is left.
local function drop(id, most)
  local key = ns .. 'gone:' .. id
  local some = redis.call('ZRANGE', key, 0, most - 1)
  for _, parent in ipairs(some) do
    if not redis.call('ZSCORE', ns .. 'parents:' .. id, parent) then -- else it was enqueued again
      redis.call('ZREM', ns .. 'children:' .. parent, id)
      redis.call('ZREM', ns .. 'pins:' .. parent, id)
      release(parent)
    end
  end
  if #some > 0 then redis.call('ZREM', key, unpack(some)) end
  return #some, redis.call('EXISTS', key) == 1
end

-- Delete a job. Of very many edges some are left to `admit`.
local room = 200
local function forget(id)
  local f = redis.call('HMGET', job(id), 'linked', 'flow')
  redis.call('UNLINK', job(id), ns .. 'attempts:' .. id, ns .. 'once:' .. id, ns .. 'log:' .. id, ns .. 'signals:' .. id)
  redis.call('ZREM', ns .. 'jobs', id)
  redis.call('ZREM', ns .. 'holding', id)
  if f[2] then
    redis.call('ZREM', ns .. 'members:' .. f[2], id)
    if redis.call('EXISTS', ns .. 'members:' .. f[2]) == 0 then
      redis.call('ZREM', ns .. 'flows', f[2])
      redis.call('HDEL', ns .. 'flow_names', f[2])
    end
  end
  local from, key = ns .. 'parents:' .. id, ns .. 'gone:' .. id
  if f[1] and redis.call('EXISTS', from) == 1 then
    redis.call('UNLINK', ns .. 'unmet:' .. id)
    redis.call('ZUNIONSTORE', key, 2, key, from)
    redis.call('UNLINK', from)
    local left = true
    if room > 0 then
      local dropped
      dropped, left = drop(id, room)
      room = room - dropped
    end
    if left then ask('gone:' .. id) end
  end
end

-- Edges of an ended job before its replay, as ZRANGE gives them with their scores. Returns a parent without which it
-- can't run, its state, and why; or nothing. A parent with the error `expired` holds its child, as a dead one does.
local function lost_of(edges, expired)
  for n = 1, #edges, 2 do
    local f, edge = redis.call('HMGET', job(edges[n]), 'state', 'error'), tonumber(edges[n + 1])
    local state = f[1]
    if (not state or state == 'cancelled' and f[2] ~= expired) and not (marked(edge, 1) or marked(edge, MINE) or marked(edge, SKIPPED)) then
      return {edges[n], '', state and 'cancelled' or 'gone'}
    end
  end
  return false
end

-- Open these edges again, where their parents have not ended as they ask; or `all`, for `admit` to look at. Jobs that
-- it gathered and that did not complete, it gathers anew.
local function open_all(id, edges, all)
  for n = 1, #edges, 2 do
    local parent, edge = edges[n], tonumber(edges[n + 1])
    local state = redis.call('HGET', job(parent), 'state')
    if marked(edge, MINE) and not marked(edge, SKIPPED) and not met(edge, state) then
      redis.call('ZREM', ns .. 'parents:' .. id, parent)
      redis.call('ZREM', ns .. 'unmet:' .. id, parent)
      redis.call('ZREM', ns .. 'children:' .. parent, id)
      redis.call('ZREM', ns .. 'pins:' .. parent, id)
      release(parent)
    else
      if not marked(edge, SKIPPED) and (state or not marked(edge, 1)) then
        if all or not met(edge, state) then
          redis.call('ZADD', ns .. 'unmet:' .. id, edge, parent)
        else
          redis.call('ZREM', ns .. 'unmet:' .. id, parent)
        end
      end
      if not all then pin(parent, id) end
    end
  end
end

-- Live workers with an older protocol.
local function outdated(protocol)
  local ids, found = redis.call('ZRANGEBYSCORE', ns .. 'alive', now, '+inf'), {}
  for first = 1, #ids, 1000 do
    local some = redis.call('ZMSCORE', ns .. 'protocols', unpack(ids, first, math.min(first + 999, #ids)))
    for n, known in ipairs(some) do
      if (tonumber(known or nil) or 1) < protocol then found[#found + 1] = ids[first + n - 1] end
    end
  end
  return found
end
