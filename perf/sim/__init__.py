"""The laboratory of the scheduler: what its policies reach, in virtual time, beside what the package's commands say."""
