#!lua
-- nothing → queued, or scheduled when due later. ARGV: what `enqueue` takes. Answers what it does.
return enqueue(1, #ARGV)
