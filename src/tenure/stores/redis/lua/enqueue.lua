#!lua
-- nothing → queued, or scheduled when due later. ARGV and answers: those of `enqueue`.
return enqueue(ARGV, 1, #ARGV)
