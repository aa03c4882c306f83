! SPDX-License-Identifier: Apache-2.0
! A Fortran program with a serial part, and a parallel one that is as it should be.
module work
  use, intrinsic :: iso_fortran_env, only: int64
  implicit none
contains
  subroutine smooth(total)
    integer(int64), intent(out) :: total
    integer(int64) :: x
    integer :: i, k
    total = 0
    !$omp parallel do schedule(static) private(x, k) reduction(ieor:total)
    do i = 1, 400
      x = i
      do k = 1, 400000
        x = ieor(ishft(x, 3), x + k)
      end do
      total = ieor(total, x)
    end do
    !$omp end parallel do
  end subroutine smooth

  subroutine assemble_matrix(total)
    integer(int64), intent(out) :: total
    integer(int64) :: x
    integer :: k
    x = 1
    do k = 1, 300000000
      x = ieor(ishft(x, 3), x + k)
    end do
    total = x
  end subroutine assemble_matrix
end module work

program serial_part
  use work
  implicit none
  integer(int64) :: a, b, c
  integer :: time
  do time = 1, max(1, command_argument_count())
    call smooth(a)
    call assemble_matrix(b)
    call smooth(c)
    print *, ieor(a, ieor(b, c))
  end do
end program serial_part
