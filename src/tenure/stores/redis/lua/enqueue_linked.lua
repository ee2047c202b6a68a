#!lua
-- nothing → queued, scheduled when due later, or waiting. ARGV: those of `store` in waits.lua. Returns 1 and the answers
-- of `enqueue`; or 0, a job or a flow, and why it is refused.
local why = refused(ARGV)
if why then return {0, why[1], why[2]} end
return {1, store(ARGV, false)}
