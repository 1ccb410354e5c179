//! cuBLAS.

use super::failed;
use crate::{Result, gpu::MatmulOperands};
use cudarc::{
    cublas::{result as blas, sys},
    driver::sys::CUstream,
};
use std::ffi::c_int;

/// A handle whose work goes to one stream.
pub(super) struct Blas(sys::cublasHandle_t);

impl Blas {
    /// `None` where cuBLAS is not installed.
    pub(super) fn open(stream: CUstream) -> Result<Option<Self>> {
        // SAFETY: it only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        let handle = blas::create_handle().map_err(failed("start cuBLAS"))?;
        // SAFETY: both live until the GPU is dropped. (The same opaque type under two names.)
        unsafe { blas::set_stream(handle, stream.cast()) }.map_err(failed("start cuBLAS"))?;
        Ok(Some(Self(handle)))
    }

    /// `out [m, n] = x [m, k] w [n, k]ᵀ`, row-major: for cuBLAS, which counts by columns, the product
    /// of w transposed with x.
    pub(super) fn matmul(&self, operands: &MatmulOperands<'_>) -> Result<()> {
        let MatmulOperands { x, w, out, m, n, k } = *operands;
        let int = |x: usize| c_int::try_from(x).map_err(failed("multiply"));
        let at = |(buffer, offset): (&crate::gpu::Buffer, usize)| buffer.handle().0 + offset as u64;
        let (one, zero) = (1f32, 0f32);
        let half = sys::cudaDataType::CUDA_R_16F;
        // SAFETY: the buffers hold matrices of these shapes, and outlive the work on the stream.
        let done = unsafe {
            blas::gemm_ex(
                self.0,
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                int(n)?,
                int(m)?,
                int(k)?,
                std::ptr::from_ref(&one).cast(),
                at(w) as *const _,
                half,
                int(k)?,
                at(x) as *const _,
                half,
                int(k)?,
                std::ptr::from_ref(&zero).cast(),
                at(out) as *mut _,
                sys::cudaDataType::CUDA_R_32F,
                int(n)?,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
            )
        };
        done.map_err(failed("multiply"))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle is used no more.
        let _ = unsafe { blas::destroy_handle(self.0) };
    }
}
