-- The script applies groups that are all of the quick kind. It lacks what the other groups
-- need, so a run costs half as much.
local p, na = 4, #A
while p <= na and A[p] do
  quick(p + 5, A[p + 2], A[p + 3], A[p + 4])
  p = A[p]
end
